"""An MLP-Mixer, of timm."""

from of_pictures import SIZE
from of_pictures import data as data
from of_pictures import loss as loss
from timm.models.mlp_mixer import MlpMixer


def model():
    return MlpMixer(img_size=SIZE, patch_size=8, embed_dim=24, num_blocks=2, num_classes=2)
