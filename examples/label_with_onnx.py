"""Label the texts of a CSV with a file of export_onnx.py; it needs onnxruntime and NumPy alone.

    python examples/label_with_onnx.py reviews.onnx new.csv labels.csv

It cleans each text as `reviews-1024` needs it, and reads one at a time. A blank text gets no label.
"""

import csv
import html
import json
import re
import sys

import numpy as np
import onnxruntime

model, source, result = sys.argv[1:]
session = onnxruntime.InferenceSession(model)
about = json.loads(session.get_modelmeta().custom_metadata_map["mlstm_jax"])
assert about["cleaning"] == "radford"
layers, units = session.get_inputs()[2].shape[1:]
start = np.zeros((1, layers, units), np.float32)
with open(source, newline="", encoding="utf-8") as file:
    rows = list(csv.DictReader(file))
with open(result, "w", newline="", encoding="utf-8") as file:
    writer = csv.writer(file)
    writer.writerow(["text", "label", *about["classes"]])
    for row in rows:
        text = re.sub("\r\n|\n|\r", " ", html.unescape(row["text"])).strip()
        read = np.frombuffer(f"\n {text} ".encode(), np.uint8)[None]
        given = {"bytes": read, "lengths": np.array([read.size]), "h": start, "c": start}
        (shares,) = session.run(["probabilities"], given)[0]
        if np.isnan(shares).any():
            writer.writerow([row["text"], "", *[""] * len(shares)])
        else:
            writer.writerow([row["text"], about["classes"][shares.argmax()], *shares])
