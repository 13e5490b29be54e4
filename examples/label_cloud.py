"""Label a room with a trained `cloud` network, at full density and at a tenth of it, and draw the result.

pinchpoint cloud data -o rooms
pinchpoint cloud train rooms -o run
python examples/label_cloud.py run rooms -o labels.png    # or packaged instead of run
"""

import argparse
from pathlib import Path

import numpy as np

from pinchpoint.systems.cloud.data.dataset import open_dataset
from pinchpoint.systems.cloud.model.model import predict_labels
from pinchpoint.systems.cloud.plots import Labelled, plot_labels
from pinchpoint.systems.cloud.training.weights import load_weights

parser = argparse.ArgumentParser(description="Draw the predicted labels of a test room.")
parser.add_argument("run", help="folder of the run, a file exported from one, or `packaged`")
parser.add_argument("rooms", help="folder of the data set")
parser.add_argument("--room", type=int, default=0, help="number of the test room (default 0)")
parser.add_argument("-o", "--output", default="labels.png")
options = parser.parse_args()

data = open_dataset(options.rooms)
full = data.scene(data.names("test")[options.room])
assert full.labels is not None  # generated rooms are labelled
tenth = full.take(np.random.default_rng(0).permutation(full.points)[: full.points // 10])
model = load_weights(options.run).model

panels = [Labelled("true labels", full, full.labels)]
panels += [Labelled("predicted", scene, predict_labels(model, scene)) for scene in (full, tenth)]
plot_labels(Path(options.output), panels, data.classes)
