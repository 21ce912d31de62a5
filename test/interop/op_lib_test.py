"""Operators from a library that the server is given with --op-lib: torchvision's, on a detection model."""
import glob
import os
import tempfile
import unittest

import torch
import torchvision

import judge
import lowerd_testing as t

# Beside the Python package. It needs libtorch only, so that the worker can load it without Python.
(OPERATORS,) = glob.glob(os.path.join(os.path.dirname(torchvision.__file__), "_C*.so"))
# Detection models hold script classes, which the lite interpreter has not got.
TORCHSCRIPT_ONLY = ("pt",)


class Detector(torch.nn.Module):
    """A detection model, and another of torchvision's operators behind it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, image):
        _, found = self.model([image])
        boxes = found[0]["boxes"]
        crops = torchvision.ops.roi_align(image.unsqueeze(0), [boxes[:3]], [4, 4])
        return found[0]["scores"], found[0]["labels"], boxes, crops


def detector():
    torch.manual_seed(5)
    model = torchvision.models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=4, score_thresh=0.0, nms_thresh=0.3,
        detections_per_img=20, topk_candidates=50)
    return torch.jit.script(Detector(model).eval())


class OperatorLibraryTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = detector()
        cls.image = torch.rand(3, 96, 128)

    def test_without_it_all_missing_operators_are_named(self):
        with t.Server(workers=1) as server, tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "m.pt")
            self.model.save(path)
            for command in (["lower", path, "--target", "model.backbone", "--out", folder + "/out"],
                            ["plan", path, "--target", "model.backbone"]):
                result = server.lowerctl(*command)
                self.assertEqual(result.code, 3, result.err)
                code, reason, message = result.error()
                self.assertEqual((code, reason), ("FAILED_PRECONDITION", "MISSING_OPERATORS"))
                self.assertIn("torchvision::nms, torchvision::roi_align", message)
                self.assertIn("--op-lib", message)
            self.assertFalse(os.path.exists(folder + "/out"))
            # An inspection tells what is missing instead of failing.
            described = server.lowerctl("--json", "inspect", path)
            self.assertEqual(described.code, 0, described.err)
            self.assertIn("torchvision::nms", described.out)
            self.assertIn("torchvision::roi_align", described.out)

    def test_with_it_parts_of_a_detection_model_are_lowered(self):
        with t.Server("--op-lib", OPERATORS, workers=2) as server:
            for targets in (["model.backbone"],
                            ["model.backbone.features.0.3", "model.backbone.features.1.1",
                             "model.backbone.extra.2"],
                            ["model.head.classification_head.module_list.1",
                             "model.head.regression_head.module_list.1",
                             "model.backbone.features.0.1.block.0.0"],
                            ["model.head"]):
                with self.subTest(targets=targets):
                    lowered = judge.Lowered(server, self.model, (self.image,), targets,
                                            formats=TORCHSCRIPT_ONLY)
                    remaining = {o["name"] for o in lowered.manifest["remainingOperators"]}
                    self.assertIn("torchvision::nms", remaining)

            for fmt in ("ptl", "ff"):
                with tempfile.TemporaryDirectory() as folder:
                    path = os.path.join(folder, "m.pt")
                    self.model.save(path)
                    result = server.lower(path, ["model.backbone"], folder + "/out", formats=fmt)
                    self.assertEqual(result.code, 3, result.err)
                    self.assertIn("[UNSUPPORTED_BY_FORMAT]", result.err)
                    self.assertIn("not supported in lite interpreter", result.err)

    def test_with_it_operators_may_be_inside_of_what_is_lowered(self):
        class Keep(torch.nn.Module):
            def forward(self, boxes, scores):
                return torchvision.ops.nms(boxes, scores, 0.5)

        class Around(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.keep = Keep()

            def forward(self, boxes, scores):
                return boxes[self.keep(boxes, scores)]

        corners = torch.rand(10, 2)
        boxes = torch.cat([corners, corners + torch.rand(10, 2)], 1)
        with t.Server("--op-lib", OPERATORS, workers=1) as server:
            judge.Lowered(server, Around(), (boxes, torch.rand(10)), ["keep"])


if __name__ == "__main__":
    unittest.main()
