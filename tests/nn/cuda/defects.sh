#!/bin/sh
# defects.sh - plants defects in the CUDA kernels, one at a time, and shows that the suite that is told notices.
#
# In a copy of the tree each defect below is made by one sed command, and the suite is built (for the host: no GPU, no
# toolkit) and run. Takes some minutes, and is not a part of the tests.
#
#   tests/nn/cuda/defects.sh [NAME...]      all defects, or only these
#
# Exit: 0 when all are noticed, 1 when one is missed, 2 when a defect no longer applies.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../../.." && pwd)
copy=$(mktemp -d "${TMPDIR:-/tmp}/chorale-defects.XXXXXX")
trap 'rm -rf "$copy"' EXIT
trap 'exit 130' INT TERM

# name @ file in nn/cuda @ sed command @ suite
defects() {
    cat <<'LIST'
statistics-barrier@kernels/norm.cu@/^    statistics_kernel(/,/^}/{/^    __syncthreads();/d}@norm
tree-barrier@kernels/norm.cu@/^__device__ double lanes_sum/,/^}/{/^        __syncthreads();/d}@norm
block-sum-barrier@kernels/device.h@/block_sum(N value/,/^}/{/const N sum/,/return/{/__syncthreads/d}}@loss
row-too-many@kernels/norm.cu@s/^    for (; inside && row < end; row += lanes)/    for (; inside \&\& row <= end; row += lanes)/@norm
part-too-short@kernels/norm.cu@s/return left < per ? left : per;/return left < per ? left : per - (per > 4);/@norm
biased-variance@kernels/norm.cu@s/variance \* rows \/ (rows - 1)/variance/@norm
addend-forgotten@kernels/norm.cu@s/v\[k\] += z\[k\];/v[k] += z[k] * (k != 5);/@norm
second-gradient-lost@kernels/norm.cu@s/g\[k\] += more\[k\];/g[k] += k < 7 ? more[k] : 0;/@norm
mask-bit-shifted@kernels/mask.h@s/<< k;/<< (k ^ 1);/@norm
mask-beyond-the-end@kernels/mask.h@s/(k < n \&\& element_open/(element_open/@norm
relu-hides-nan@element.h@s/return !(y <= 0);/return y > 0;/@norm
no-welford@element.h@s/\*squares = fmaf(before, value - \*mean, \*squares);/*squares = fmaf(before, before, *squares);/@norm
last-maximum@kernels/pool.cu@s/!(v\[k\] <= best\[k\])/v[k] >= best[k]/@pool
window-left-out@kernels/pool.cu@s/oy <= (iy + PADDING) \/ STRIDE/oy <= iy \/ STRIDE/@pool
half-a-warp-summed@kernels/loss.cu@/^template <typename N> __device__ N warp_sum/,/^}/s/FULL_WARP \/ 2/FULL_WARP \/ 4/@loss
no-smoothing@kernels/loss.cu@s/ - smooth;/;/@loss
tie-for-the-label@kernels/loss.cu@s/k < label)/k > label)/@loss
contracted@element.h@s/(g + decay \* \*w);/fmaf(decay, *w, g);/@update
copy-not-padded@kernels/update.cu@s/within \/ tensor.channels \* tensor.padded/within/@update
entry-too-far@kernels/update.cu@s/e + count <= tensor.offset + tensor.count/e <= tensor.offset + tensor.count/@update
head-skipped@kernels/device.h@s/begin = p \* W < span.shift ? 0 : p \* W - span.shift/begin = p * W/@collective
not-rounded-between@kernels/collective.cu@s/result.element\[k\] = last ? finish(v) : as::put(v);/result.element[k] = finish(v);/@collective
zeros-alike@element.h@/element_min_f32/,/^}/s/element_bits(a) >> 31 ? a : b/a/@collective
tail-too-long@kernels/device.h@s/begin == W \&\& end <= span.count/begin == W/@convert
double-rounding@element.h@s/magnitude + 0xfff/magnitude + 0x1000/@convert
crop-one-further@element.h@s/ceilf(begin + extent) - 1;/ceilf(begin + extent);/@images
flip-one-further@kernels/images.cu@s/out_width - 1 - x/out_width - 2 - x/@images
LIST
}

build() {
    cmake --build "$copy/build" --target "$1" >"$copy/build.log" 2>&1 || {
        tail -n 20 "$copy/build.log" >&2
        return 1
    }
}

passes() {
    IPATH_NO_BACKTRACE=1 timeout -k 5 300 "$copy/build/tests/nn/cuda/$1" >"$copy/run.log" 2>&1
}

mkdir "$copy/tree" && (cd "$root" && tar -cf - --exclude=./build --exclude=./.git --exclude=./results .) |
    tar -xf - -C "$copy/tree" || exit 2
if ! cmake -S "$copy/tree" -B "$copy/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCHORALE_CUDA=OFF >"$copy/build.log" 2>&1 ||
    ! build nn_kernels_tests; then
    echo "defects.sh: the tree itself does not build" >&2
    exit 2
fi
for suite in norm pool loss update collective convert images; do
    passes "nn_test_kernels_$suite" || {
        echo "defects.sh: $suite fails without any defect" >&2
        exit 2
    }
done

failed=0
defects >"$copy/list"
while IFS='@' read -r name file command suite <&3; do
    case " $* " in *" $name "* | "  ") ;; *) continue ;; esac
    target=$copy/tree/nn/cuda/$file
    cp "$target" "$copy/good"
    sed "$command" "$copy/good" >"$target"
    if cmp -s "$copy/good" "$target" || ! build "nn_test_kernels_$suite"; then
        echo "defects.sh: $name no longer applies: change its sed command" >&2
        exit 2
    fi
    if passes "nn_test_kernels_$suite"; then
        verdict=missed failed=1
    else
        verdict=noticed
    fi
    printf '%-22s %-12s %s\n' "$name" "$suite" "$verdict"
    cp "$copy/good" "$target"
done 3<"$copy/list"
exit $failed
