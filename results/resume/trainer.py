"""Hugging Face's Trainer, resumed as its example scripts do: from `get_last_checkpoint`."""

from pathlib import Path
from typing import Any

import torch
from shared import BATCH, EPOCHS, SAVE_EVERY, SEED, Reads, examples, finish, processes
from small_model import SmallModel, parameters_of
from transformers import Trainer, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


def run(folder: Path) -> None:
    """Train to the end, from the last checkpoint if there is one."""
    reads = Reads(folder)
    out = folder / "out"
    out.mkdir(exist_ok=True)

    class Model(SmallModel):
        def forward(self, example: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
            reads.note(trainer.state.global_step + 1, example[:, 0])
            return {"loss": self.loss(example[:, 1:])}

    set_seed(SEED)
    model = Model()
    arguments = TrainingArguments(
        str(out),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=BATCH // processes(),
        learning_rate=1e-2,
        save_strategy="steps",
        save_steps=SAVE_EVERY,
        seed=SEED,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    rows = [{"example": torch.from_numpy(row)} for row in examples()]
    trainer = Trainer(model, arguments, train_dataset=rows)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(out))
    finish(folder, parameters_of(model))
