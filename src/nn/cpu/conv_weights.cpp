#include "nn/cpu/conv_weights.h"

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "nn/cpu/elements.h"
#include "nn/cpu/parallel.h"

// dw[o,i,ky,kx] = sum over n, y, x of dy[n,y,x,o] x[n, y + ky - p, x + kx - p, i], p = (K - 1) / 2.
//
// Both are laid out channel by channel, as (O,L) and (I,L): pixel (n,y,x) is number l = (n (Y + p) + y) (X + p) + x of a row,
// and the p columns and rows that each line and image has more are 0. They stand for the zeros on all sides, because what lies
// left of a line is the end of the one before it. A shift of the image is then a shift of the row: for each (ky,kx)
//   dw[:,:,ky,kx] = dy (O,L) x (I, L moved by (ky - p) (X + p) + kx - p)^T,
// a product of two matrices whose sums run along rows of both, which is the form that AMX likes best.
namespace bitloom::nn {
namespace {

using Desc = dnnl::memory::desc;
using Dim = dnnl::memory::dim;
using Tag = dnnl::memory::format_tag;

constexpr std::size_t part_pixels = 2048;      // L of what is laid out at a time: fits into a cache with 256 channels
constexpr std::size_t sum_pixels = 512;        // of one product
constexpr std::size_t most_image_groups = 32;  // each has sums of its own

struct ConvSizes {
  std::size_t images, rows, columns, inputs, outputs, kernel, border;
  std::size_t cells;             // of an image in L
  std::size_t part_images;       // laid out at a time
  std::size_t part;              // L of these, a multiple of sum_pixels
  std::size_t margin;            // zeros before and after the rows of x
  std::size_t x_pitch, y_pitch;  // elements of a row
  std::size_t parts, groups;

  ConvSizes(const Conv2d& conv, const Shape& x, const Shape& w)
      : images(x[0]), rows(x[1]), columns(x[2]), inputs(x[3]), outputs(w[0]), kernel(w[2]), border(conv.padding) {
    cells = (rows + border) * (columns + border);
    part_images = std::clamp<std::size_t>(part_pixels / cells, 1, images);
    part = (part_images * cells + sum_pixels - 1) / sum_pixels * sum_pixels;
    margin = border * (columns + border) + border;
    x_pitch = pitch(part + 2 * margin);
    y_pitch = pitch(part);
    parts = (images + part_images - 1) / part_images;
    // With two parts at least, adding up the groups' sums is little work.
    groups = std::clamp<std::size_t>(parts / 2, 1, most_image_groups);
  }
  // Rows an odd number of cache lines apart do not compete for the same places of a cache.
  static std::size_t pitch(std::size_t elements) {
    constexpr std::size_t line = 32;
    const std::size_t lines = (elements + line - 1) / line;
    return (lines | 1U) * line;
  }
  std::size_t first_part(std::size_t group) const { return group * parts / groups; }
  std::size_t last_images() const { return images - (parts - 1) * part_images; }
  std::size_t room() const { return inputs * x_pitch + outputs * y_pitch; }
  std::size_t sums() const { return kernel * kernel * outputs * inputs; }
};

Dim dim(std::size_t n) { return static_cast<Dim>(n); }

// From (N,Y,X,C) to rows of channels.
std::unique_ptr<Call> make_layout(const OneDnn& onednn, const ConvSizes& sizes, std::size_t images, std::size_t channels,
                                  std::size_t pitch) {
  const dnnl::memory::dims shape = {dim(images), dim(channels), dim(sizes.rows), dim(sizes.columns)};
  const Desc from(shape, dnnl::memory::data_type::bf16, Tag::nhwc);
  const Desc to(shape, dnnl::memory::data_type::bf16, {dim(sizes.cells), dim(pitch), dim(sizes.columns + sizes.border), 1});
  return make_reorder(onednn.engine(), from, to);
}

std::unique_ptr<Call> make_product(const OneDnn& onednn, const ConvSizes& sizes, bool adds) {
  constexpr auto bf16_type = dnnl::memory::data_type::bf16;
  const Desc a({dim(sizes.outputs), dim(sum_pixels)}, bf16_type, {dim(sizes.y_pitch), 1});
  const Desc b({dim(sum_pixels), dim(sizes.inputs)}, bf16_type, {1, dim(sizes.x_pitch)});
  const Desc out({dim(sizes.outputs), dim(sizes.inputs)}, dnnl::memory::data_type::f32, {dim(sizes.inputs), 1});
  dnnl::post_ops post_ops;
  if (adds) post_ops.append_sum(1.F);
  const auto pd = compat::matmul(onednn.engine(), a, b, {}, out, compat::attributes(post_ops));
  const std::array arguments = {Call::Argument{DNNL_ARG_SRC, a}, Call::Argument{DNNL_ARG_WEIGHTS, b},
                                Call::Argument{DNNL_ARG_DST, out}};
  return std::make_unique<Call>(onednn.engine(), dnnl::matmul(pd), pd.scratchpad_desc(), arguments);
}

// The calls of a group, in this order.
enum Part : std::size_t { lay_out_x, lay_out_y, multiply, multiply_and_add, lay_out_last_x, lay_out_last_y, calls_of_group };

LaidOutCall build(const OneDnn& onednn, const ConvSizes& sizes) {
  const OneThread one_thread;
  LaidOutCall call;
  for (std::size_t group = 0; group < sizes.groups; ++group) {
    const bool has_rest = group + 1 == sizes.groups && sizes.last_images() != sizes.part_images;
    call.groups.push_back(make_layout(onednn, sizes, sizes.part_images, sizes.inputs, sizes.x_pitch));
    call.groups.push_back(make_layout(onednn, sizes, sizes.part_images, sizes.outputs, sizes.y_pitch));
    call.groups.push_back(make_product(onednn, sizes, false));
    call.groups.push_back(make_product(onednn, sizes, true));
    call.groups.push_back(has_rest ? make_layout(onednn, sizes, sizes.last_images(), sizes.inputs, sizes.x_pitch) : nullptr);
    call.groups.push_back(has_rest ? make_layout(onednn, sizes, sizes.last_images(), sizes.outputs, sizes.y_pitch) : nullptr);
  }
  call.weights.bytes = sizes.sums() * sizeof(float);
  const dnnl::memory::dims shape = {dim(sizes.outputs), dim(sizes.inputs), dim(sizes.kernel), dim(sizes.kernel)};
  const std::size_t matrix = sizes.outputs * sizes.inputs;
  const Desc sums(shape, dnnl::memory::data_type::f32, {dim(sizes.inputs), 1, dim(sizes.kernel * matrix), dim(matrix)});
  call.weights.reorder = make_reorder(onednn.engine(), sums, Desc(shape, dnnl::memory::data_type::f32, Tag::oihw), true);
  return call;
}

// One group's work in one thread.
class GroupWork {
 public:
  GroupWork(const ConvSizes& sizes, std::span<const std::unique_ptr<Call>> calls, void* scratch, bf16* room, float* sums)
      : sizes_(sizes), calls_(calls), scratch_(scratch), x_(room), y_(room + sizes.inputs * sizes.x_pitch), sums_(sums) {}

  void run(std::size_t group, const bf16* x, const bf16* dy) {
    clear();
    const std::size_t end = sizes_.first_part(group + 1);
    for (std::size_t part = sizes_.first_part(group); part < end; ++part) {
      const std::size_t pixel = part * sizes_.part_images * sizes_.rows * sizes_.columns;
      const bool is_rest = part + 1 == sizes_.parts && sizes_.last_images() != sizes_.part_images;
      if (is_rest) clear();  // of the part before it
      call(is_rest ? lay_out_last_x : lay_out_x, std::array<const void*, 2>{x + pixel * sizes_.inputs, x_ + sizes_.margin});
      call(is_rest ? lay_out_last_y : lay_out_y, std::array<const void*, 2>{dy + pixel * sizes_.outputs, y_});
      multiply_shifted(part == sizes_.first_part(group));
    }
  }

 private:
  void clear() { std::memset(static_cast<void*>(x_), 0, sizes_.room() * sizeof(bf16)); }

  void call(Part which, std::span<const void* const> pointers) { calls_[which]->run(scratch_, pointers); }

  void multiply_shifted(bool is_first) {
    for (std::size_t tap = 0; tap < sizes_.kernel * sizes_.kernel; ++tap) {
      // From the margin's first element: a shift of -border rows and columns is 0.
      const std::size_t shift = tap / sizes_.kernel * (sizes_.columns + sizes_.border) + tap % sizes_.kernel;
      float* const out = sums_ + tap * sizes_.outputs * sizes_.inputs;
      for (std::size_t l = 0; l < sizes_.part; l += sum_pixels) {
        call(is_first && l == 0 ? multiply : multiply_and_add, std::array<const void*, 3>{y_ + l, x_ + shift + l, out});
      }
    }
  }

  const ConvSizes& sizes_;
  std::span<const std::unique_ptr<Call>> calls_;
  void* scratch_;
  bf16 *x_, *y_;
  float* sums_;
};

}  // namespace

bool takes_shifted_products(const OneDnn& onednn, const Conv2d& conv, const Tensor& x, const Tensor& dy, const Shape& w) {
  constexpr std::size_t least_channels = 128;  // with fewer, laying out takes longer than it saves
  const bool is_same_size = conv.stride == 1 && w[2] == w[3] && w[2] == 2 * conv.padding + 1 && x.shape()[1] == dy.shape()[1];
  return onednn.has_amx() && x.dtype() == DType::bf16 && is_same_size && w[0] >= least_channels && w[1] >= least_channels;
}

void add_shifted_products(OneDnn& onednn, const Conv2d& conv, const Tensor& x, const Tensor& dy, Tensor& dw) {
  const ConvSizes sizes(conv, x.shape(), dw.shape());
  const CacheKey key = {static_cast<std::uint64_t>(Operation::shifted_products),
                        sizes.images,
                        sizes.rows,
                        sizes.columns,
                        sizes.inputs,
                        sizes.outputs,
                        sizes.kernel};
  LaidOutCall& call = onednn.call(key, [&] { return build(onednn, sizes); });
  const auto threads = std::min(static_cast<std::size_t>(omp_get_max_threads()), sizes.groups);
  auto* const rooms = static_cast<bf16*>(onednn.a.get(threads * sizes.room() * sizeof(bf16)));
  auto* const sums = static_cast<float*>(onednn.layout.get(sizes.groups * call.weights.bytes));
  onednn.for_blocks(sizes.groups, call, [&](std::size_t group, std::size_t thread, void* scratch) {
    GroupWork work(sizes, std::span(call.groups).subspan(group * calls_of_group, calls_of_group), scratch,
                   rooms + thread * sizes.room(), sums + group * sizes.sums());
    work.run(group, x.as<bf16>().data(), dy.as<bf16>().data());
  });
  add_sums(sums, sizes.sums(), sizes.groups);
  onednn.run(*call.weights.reorder, std::array<const void*, 2>{sums, dw.data()});
}

}  // namespace bitloom::nn
