"""From observations and beats to verdicts: which device, node or link is lost, with the evidence. No database."""
