# Two images from one file:   docker build --target services .     the control plane, without PyTorch
#                             docker build --target agent .        an agent with its trainer, with PyTorch
# Plain instructions only, so that builders without BuildKit take it too.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# --- the wheel, built with pinned tools ---------------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS wheel
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements.lock ./
RUN python -m venv /tools && /tools/bin/pip install -q -c requirements.lock build hatchling
COPY . ./
RUN /tools/bin/python -m build --wheel --no-isolation --outdir /dist

# --- what the project asks for, as lists: only a changed list makes the environments anew --------------------------------
FROM ${PYTHON_IMAGE} AS wanted
WORKDIR /wanted
COPY pyproject.toml ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; e = p['optional-dependencies']; \
open('services.txt', 'w').write('\n'.join(p['dependencies'] + e['postgres'])); open('trainer.txt', 'w').write('\n'.join(e['trainer']))"

# --- an environment with what the control plane asks for, at the locked versions ---------------------------------------
FROM ${PYTHON_IMAGE} AS environment
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements.lock ./
COPY --from=wanted /wanted/services.txt ./
RUN python -m venv /opt/resihp && /opt/resihp/bin/pip install -q -c requirements.lock -r services.txt

# --- control plane --------------------------------------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS services
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/resihp resihp
ENV PATH=/opt/resihp/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --from=environment /opt/resihp /opt/resihp
COPY --from=wheel /dist /dist
RUN pip install -q --no-cache-dir --no-deps /dist/*.whl && rm -r /dist
USER resihp
WORKDIR /var/lib/resihp
CMD ["resihp", "--help"]

# --- the same environment with PyTorch ---------------------------------------------------------------------------------
# TORCH_INDEX_URL: an index of CPU or CUDA builds to look in besides the default one.
FROM environment AS trainer-environment
ARG TORCH_INDEX_URL=
COPY --from=wanted /wanted/trainer.txt ./
RUN /opt/resihp/bin/pip install -q -c requirements.lock ${TORCH_INDEX_URL:+--extra-index-url "$TORCH_INDEX_URL"} -r trainer.txt

# --- agent ------------------------------------------------------------------------------------------------------------
FROM ${PYTHON_IMAGE} AS agent
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/resihp resihp
ENV PATH=/opt/resihp/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
COPY --from=trainer-environment /opt/resihp /opt/resihp
COPY --from=wheel /dist /dist
RUN pip install -q --no-cache-dir --no-deps /dist/*.whl && rm -r /dist
USER resihp
WORKDIR /var/lib/resihp
CMD ["python", "-m", "resihp_agent"]
