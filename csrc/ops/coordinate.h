/* coordinate.h: where output position j of one resized axis lies in the input: the formulas of ONNX
 * Resize for every coordinate_transformation_mode, in T (float or double). Included once per T,
 * which is undefined here; NAME is the function.
 *
 * n and m are the sizes of the axis before and after; scale is m / n where sizes were given, and
 * the given number otherwise, in which case scale * n need not be m. */

static inline T NAME(int64_t coordinate, int64_t j, int64_t n, int64_t m, T scale, T start, T end) {
    const T at = (T)j, length = scale * (T)n, half = (T)0.5, span = (T)(n - 1);
    switch (coordinate) {
        case Q7_coordinate_asymmetric: return at / scale;
        case Q7_coordinate_align_corners: return length == 1 ? 0 : at * span / (length - 1);
        case Q7_coordinate_tf_half_pixel_for_nn: return (at + half) / scale;
        case Q7_coordinate_pytorch_half_pixel: return m == 1 ? 0 : (at + half) / scale - half;
        case Q7_coordinate_half_pixel_symmetric:
            return (T)n / 2 * (1 - (T)m / length) + (at + half) / scale - half;
        case Q7_coordinate_tf_crop_and_resize:
            return length == 1 ? half * (start + end) * span
                               : start * span + at * (end - start) * span / (length - 1);
        default: return (at + half) / scale - half;
    }
}
#undef T
#undef NAME
