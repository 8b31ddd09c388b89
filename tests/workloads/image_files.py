"""Small image folders and batches of CIFAR-10 to read."""

import pickle
from pathlib import Path

import numpy as np
from PIL import Image

from istbench.workloads.image_data.build import DecodedSummary, open_decoded
from istbench.workloads.prepared import SPLITS, open_summary

CLASSES = ("cat", "dog", "eel")


def pixels(count, side=32, seed=0):
    """Random images, uint8 [count, side, side, 3]."""
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def save(path, image, mode="RGB"):
    """Write `image` in that mode to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).convert(mode).save(path)


def folders(
    root,
    classes=CLASSES,
    *,
    train=3,
    test=2,
    test_name="test",
    side=32,
    suffix="png",
):
    """Image folders of random images, so many of each class."""
    for number, name in enumerate(classes):
        for split, count in (("train", train), (test_name, test)):
            for place, image in enumerate(pixels(count, side, seed=100 * number + len(split))):
                save(root / split / name / f"{place}.{suffix}", image)
    return root


def tiny_imagenet(root, classes=CLASSES):
    """The layout of Tiny ImageNet: images/ in the class folders, the validation's classes in a file."""
    lines = []
    for number, name in enumerate(classes):
        for place, image in enumerate(pixels(3, seed=number)):
            save(root / "train" / name / "images" / f"{name}_{place}.JPEG", image)
        (root / "train" / name / f"{name}_boxes.txt").write_text("boxes")
        save(root / "val" / "images" / f"val_{number}.JPEG", pixels(1, seed=50 + number)[0])
        lines.append(f"val_{number}.JPEG\t{name}\t0\t0\t9\t9\n")
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "test" / "images").mkdir(parents=True)
    return root


def batches(root, each, *, binary=False):
    """CIFAR-10's official batches, `each` images a file: the folder, all images [n, 3, 32, 32], labels [n]."""
    folder = root / ("cifar-10-batches-bin" if binary else "cifar-10-batches-py")
    folder.mkdir(parents=True)
    images = pixels(6 * each).transpose(0, 3, 1, 2).reshape(6 * each, -1).copy()
    labels = np.arange(6 * each) % 10
    for number, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        chosen = slice(number * each, (number + 1) * each)
        if binary:
            rows = np.concatenate([labels[chosen, None].astype(np.uint8), images[chosen]], axis=1)
            (folder / f"{name}.bin").write_bytes(rows.tobytes())
        else:
            write_pickle(folder / name, {b"data": images[chosen], b"labels": labels[chosen].tolist()})
    return folder, images.reshape(-1, 3, 32, 32), labels


def decoded(source):
    """The summary and both splits of prepared images."""
    directory = Path(source.path)
    summary = open_summary(directory, DecodedSummary)
    return summary, *(open_decoded(directory, summary, split) for split in SPLITS)


def write_pickle(path, value):
    """Pickle `value`, an array in it as old numpy did."""
    path.write_bytes(pickle.dumps(value, protocol=4))
