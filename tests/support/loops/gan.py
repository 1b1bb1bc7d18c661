"""A GAN as PyTorch's DCGAN example trains it: two optimizers, three backward passes in each step."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from parts import STEPS, WIDTH, Vectors, slow, slow_collate, slow_updates
from torch import nn
from torch.utils.data import DataLoader
from witness import Witness

out = Path(os.environ["LOOP_RESULTS"])
witness = Witness()
torch.manual_seed(3)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, WIDTH))

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return slow(self.layers(noise))


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1), nn.Sigmoid())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return slow(self.layers(inputs)).view(-1)


net_g, net_d = Generator(), Discriminator()
criterion = nn.BCELoss()
optimizer_d = torch.optim.Adam(net_d.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(net_g.parameters(), lr=2e-4, betas=(0.5, 0.999))
slow_updates(optimizer_d)
slow_updates(optimizer_g)
fixed_noise = torch.randn(16, 8)
per_epoch = 8
loader = DataLoader(
    Vectors(16 * per_epoch), batch_size=16, shuffle=True, num_workers=2, collate_fn=slow_collate
)

iteration = 0
while iteration < STEPS:
    for data, _ in witness.batches(loader):
        with witness.step():
            net_d.zero_grad()
            label = torch.full((len(data),), 1.0)
            with witness.phase("forward"):
                error_real = criterion(net_d(data), label)
            with witness.phase("backward"):
                error_real.backward()
            with witness.phase("forward"):
                fake = net_g(torch.randn(len(data), 8))
            label.fill_(0.0)
            with witness.phase("forward"):
                error_fake = criterion(net_d(fake.detach()), label)
            with witness.phase("backward"):
                error_fake.backward()
            error_d = error_real + error_fake
            with witness.phase("optimizer"):
                optimizer_d.step()

            net_g.zero_grad()
            label.fill_(1.0)
            with witness.phase("forward"):
                error_g = criterion(net_d(fake), label)
            with witness.phase("backward"):
                error_g.backward()
            with witness.phase("optimizer"):
                optimizer_g.step()
            witness.loss(error_d.item())
        print(f"[{iteration}] Loss_D: {error_d.item():.4f} Loss_G: {error_g.item():.4f}", flush=True)
        if iteration % per_epoch == per_epoch - 1:
            with witness.evaluation(), torch.no_grad():
                net_g(fixed_noise)
        iteration += 1
        if iteration == STEPS:
            break
    with witness.checkpoint():
        torch.save(net_g.state_dict(), out / f"netG_{iteration}.pth")
        torch.save(net_d.state_dict(), out / f"netD_{iteration}.pth")
witness.finish(nn.ModuleList([net_g, net_d]))
