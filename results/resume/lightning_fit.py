"""Lightning's Trainer.fit with a ModelCheckpoint and `ckpt_path="last"`."""

from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from shared import BATCH, EPOCHS, SAVE_EVERY, SEED, Reads, examples, finish, processes
from small_model import SmallModel, parameters_of
from torch.utils.data import DataLoader


def run(folder: Path) -> None:
    """Train to the end, from the last checkpoint if there is one."""
    reads = Reads(folder)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = SmallModel()

        def training_step(self, example: torch.Tensor, _: int) -> torch.Tensor:
            reads.note(self.global_step + 1, example[:, 0])
            return self.model.loss(example[:, 1:])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    lightning.seed_everything(SEED)
    module = Module()
    rows = torch.from_numpy(examples())
    loader = DataLoader(rows, batch_size=BATCH // processes(), shuffle=True)
    keep = ModelCheckpoint(
        folder / "out", every_n_train_steps=SAVE_EVERY, save_last=True, save_top_k=-1
    )
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=processes(),
        strategy="ddp" if processes() > 1 else "auto",
        logger=False,
        callbacks=[keep],
        enable_progress_bar=False,
    )
    trainer.fit(module, loader, ckpt_path="last")
    finish(folder, parameters_of(module))
