"""The functions of this room under the parameters of TensorFlow 2, where these differ."""

from penstock.graph.adapted import adapted
from penstock.ops.image import boxes, nms, quality, sampling

crop_and_resize = adapted(
    boxes.crop_and_resize, "image, boxes, box_indices, crop_size, method='bilinear', extrapolation_value=0.0, name=None"
)
draw_bounding_boxes = adapted(boxes.draw_bounding_boxes, "images, boxes, colors, name=None")
extract_glimpse = adapted(
    boxes.extract_glimpse_v2,
    "input, size, offsets, centered=True, normalized=True, noise='uniform', name=None",
    uniform_noise=False,
)
non_max_suppression_padded = adapted(
    nms.non_max_suppression_padded,
    "boxes, scores, max_output_size, iou_threshold=0.5, score_threshold=-1e999, pad_to_max_output_size=False, "
    "name=None, sorted_input: _ = False, canonicalized_coordinates: _ = False, tile_size: _ = 512",
)
sample_distorted_bounding_box = adapted(
    sampling.sample_distorted_bounding_box,
    "image_size, bounding_boxes, seed=0, min_object_covered=0.1, aspect_ratio_range=None, area_range=None, "
    "max_attempts=None, use_image_if_no_bounding_boxes=None, name=None",
)
ssim = adapted(
    quality.ssim, "img1, img2, max_val, filter_size=11, filter_sigma=1.5, k1=0.01, k2=0.03, return_index_map: _ = False"
)
