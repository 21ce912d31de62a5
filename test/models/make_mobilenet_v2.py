"""Exports the vision model that this repository ships.

torchvision's MobileNetV2 at a quarter of its width with 100 classes, random weights of a fixed seed,
scripted. Run with Debian 12's python3-torch and python3-torchvision:

    /usr/bin/python3 test/models/make_mobilenet_v2.py test/models
"""
import os
import sys

import torch
import torchvision


def main(folder):
    torch.manual_seed(59921)
    model = torchvision.models.MobileNetV2(num_classes=100, width_mult=0.25)
    for module in model.modules():  # statistics as training leaves them, not all 0 and 1
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.8, 1.2)
    torch.jit.script(model.eval()).save(os.path.join(folder, "mobilenet_v2.pt"))
    torch.save((torch.rand(1, 3, 96, 96),), os.path.join(folder, "mobilenet_v2.inputs.pt"))


if __name__ == "__main__":
    main(sys.argv[1])
