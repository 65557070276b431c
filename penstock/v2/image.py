"""Images: files, colours, sizes, boxes."""

from penstock.face.missing import guard as _guard
from penstock.ops.image.boxes import extract_patches
from penstock.ops.image.codecs import (
    adjust_jpeg_quality,
    decode_and_crop_jpeg,
    decode_bmp,
    decode_gif,
    decode_image,
    decode_jpeg,
    decode_png,
    encode_jpeg,
    encode_png,
    extract_jpeg_shape,
    is_jpeg,
    random_jpeg_quality,
)
from penstock.ops.image.color import (
    adjust_brightness,
    adjust_contrast,
    adjust_gamma,
    adjust_hue,
    adjust_saturation,
    convert_image_dtype,
    hsv_to_rgb,
    per_image_standardization,
    random_brightness,
    random_contrast,
    random_hue,
    random_saturation,
    rgb_to_grayscale,
    rgb_to_hsv,
    rgb_to_yiq,
    rgb_to_yuv,
    yiq_to_rgb,
    yuv_to_rgb,
)
from penstock.ops.image.combined_nms import combined_non_max_suppression
from penstock.ops.image.geometry import (
    central_crop,
    crop_to_bounding_box,
    flip_left_right,
    flip_up_down,
    grayscale_to_rgb,
    pad_to_bounding_box,
    random_flip_left_right,
    random_flip_up_down,
    rot90,
    transpose,
)
from penstock.ops.image.geometry import resize_image_with_crop_or_pad as resize_with_crop_or_pad
from penstock.ops.image.nms import non_max_suppression, non_max_suppression_overlaps, non_max_suppression_with_scores
from penstock.ops.image.quality import image_gradients, psnr, sobel_edges, ssim_multiscale, total_variation
from penstock.ops.image.resize import ResizeMethodV2 as ResizeMethod
from penstock.ops.image.resize import resize_images_v2 as resize
from penstock.ops.image.v2 import (
    crop_and_resize,
    draw_bounding_boxes,
    extract_glimpse,
    non_max_suppression_padded,
    sample_distorted_bounding_box,
    ssim,
)
from penstock.ops.random.stateful import random_crop

__getattr__ = _guard(__name__)
