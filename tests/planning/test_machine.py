"""Descriptions of machines, and measured rates, that are wrong."""

import json
from pathlib import Path

import pytest

from mlstm_jax.errors import UserError
from mlstm_jax.planning.machine import load_machine, with_measured_rate

MACHINES = Path(__file__).parents[2] / "configs/machines"
_H200 = json.loads((MACHINES / "h200.json").read_text())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a machine description"),
        ('{"name": "x"}', "is not a machine description"),
        ('{"name": 5}', "is not a machine description"),
        (json.dumps(_H200 | {"inside_node": {"bytes_per_s": 0}}), "inside_node.bytes_per_s is 0"),
        (json.dumps(_H200 | {"step_flops_per_s": {"fp32": True}}), "step_flops_per_s.fp32 is True"),
        (json.dumps(_H200 | {"memory_bytes": float("nan")}), "memory_bytes is nan, .* above 0"),
    ],
    ids=lambda text: text[:40],
)
def test_a_bad_description_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "machine.json").write_text(text)
    with pytest.raises(UserError, match=message):
        load_machine(tmp_path / "machine.json")
    with pytest.raises(UserError, match=r"none\.json does not exist"):
        load_machine(tmp_path / "none.json")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"rows": [{"flops": 1}]}', "[]"])
def test_results_that_are_none_are_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(text)
    machine = load_machine(MACHINES / "h200.json")
    with pytest.raises(UserError, match=r'results\.json has no train step of "ours" in bf16'):
        with_measured_rate(machine, tmp_path / "results.json", "bf16", 1024)
