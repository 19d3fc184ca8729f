"""`resihp train JOB.toml`: on the system that runs, or on one started for this job."""

from __future__ import annotations

from pathlib import Path

from resihp_cli.client import GatewayClient
from resihp_cli.commands.demo import train_locally
from resihp_cli.commands.locate import running_local
from resihp_cli.commands.running import run as run_loop
from resihp_cli.commands.training import TrainingRequest, console_for, train
from resihp_cli.job_file import check_data, load, localised, resumed
from resihp_cli.json_file import check_json_path
from resihp_cli.pretrained import check_files
from resihp_cli.run_folder import RunFolder
from resihp_cli.supervisor import SupervisorOptions, deal_slots


def run_train(
    job_file: Path,
    *,
    resume: bool = False,
    url: str | None,
    agents: int,
    headless: bool,
    verify: bool,
    json_path: Path | None,
) -> int:
    """Returns 0 if everything asked for holds, else 1."""
    spec = load(job_file)
    if resume:
        spec = resumed(spec)
    check_json_path(json_path)
    if url is None:
        check_data(spec.data.path)
        check_files(spec)
        spec = localised(spec)
    request = TrainingRequest(spec, verify=verify, headless=headless, json_path=json_path)
    folder = running_local() if url is None else None
    if url is not None or folder is not None:
        return run_loop(_train_there(request, url or _url(folder), folder))
    deal_slots(spec.parallel.num_devices, agents)
    return run_loop(train_locally(request, SupervisorOptions(spec.parallel.num_devices, agents)))


def _url(folder: RunFolder | None) -> str:
    assert folder is not None
    return folder.read().gateway_url


async def _train_there(request: TrainingRequest, url: str, folder: RunFolder | None) -> int:
    async with GatewayClient(url) as client:
        outcome = await train(request, client, folder, console_for(request.headless))
    return 1 if outcome.failures else 0
