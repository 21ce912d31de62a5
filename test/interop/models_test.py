"""Real architectures, whole paths: every artifact runs in stock PyTorch and gives what the model gave."""
import unittest

import torch
import torchvision

import judge
import lowerd_testing as t


def realistic(model, seed=7):
    """Random weights, and statistics as training leaves them."""
    torch.manual_seed(seed)
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.8, 1.2)
    return model.eval()


class ModelsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = t.Server().start()
        cls.addClassCleanup(cls.server.__exit__)
        cls.image = (torch.rand(1, 3, 64, 64),)
        cls.resnet = torch.jit.script(realistic(torchvision.models.resnet18(weights=None)))

    def test_resnet18_four_layers(self):
        judge.Lowered(self.server, self.resnet, self.image, ["layer1", "layer2", "layer3", "layer4"])

    def test_resnet18_one_block_and_one_convolution(self):
        judge.Lowered(self.server, self.resnet, self.image, ["layer1.0", "layer2.1.conv2"])

    def test_resnet18_whole(self):
        judge.Lowered(self.server, self.resnet, self.image, ["."])

    def test_mobilenet_v2_alternating_blocks(self):
        model = realistic(torchvision.models.mobilenet_v2(weights=None))
        judge.Lowered(self.server, model, self.image, ["features.%d" % i for i in range(1, 18, 2)])

    def test_shufflenet_v2_single_branches(self):
        model = realistic(torchvision.models.shufflenet_v2_x0_5(weights=None))
        judge.Lowered(self.server, model, self.image,
                      ["stage2.0.branch1", "stage2.1.branch2", "stage3.2.branch2.3", "conv5"])

    def test_vision_transformer_encoder_layers(self):
        model = torchvision.models.VisionTransformer(image_size=32, patch_size=8, num_layers=3,
                                                     num_heads=2, hidden_dim=16, mlp_dim=32)
        judge.Lowered(self.server, realistic(model), (torch.rand(1, 3, 32, 32),),
                      ["encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_2.mlp"])

    def test_shipped_model_traced_and_frozen(self):
        model = torch.jit.load(t.MODEL)
        inputs = torch.load(t.MODEL_INPUTS)
        judge.Lowered(self.server, torch.jit.trace(model, inputs), inputs, ["features.1", "classifier"])
        judge.Lowered(self.server, torch.jit.freeze(model), inputs, ["."])


if __name__ == "__main__":
    unittest.main()
