#include "layerwise/layer.h"

#include <algorithm>

#include "core/error.h"

namespace bitloom::layerwise {
namespace {

// Every two words of a pixel that have the same weights; empty if there are none.
std::vector<std::uint16_t> twins_of(const Ties::PixelWords& words) {
  const std::size_t pixel_words = words.place.size();
  if (words.stored.size() == pixel_words) return {};
  std::vector<std::uint16_t> twin(pixel_words);
  std::vector<std::size_t> single(words.stored.size(), pixel_words);  // by place: a word that has no twin yet
  for (std::size_t w = 0; w < pixel_words; ++w) {
    std::size_t& other = single[words.place[w]];
    twin[w] = static_cast<std::uint16_t>(other < pixel_words ? other : w);
    if (other < pixel_words) twin[other] = static_cast<std::uint16_t>(w);
    other = other < pixel_words ? pixel_words : w;
  }
  return twin;
}

}  // namespace

BinaryLayer::BinaryLayer(const LayerSpec& spec, const LayerGeometry& geometry)
    : spec_(spec), geometry_(geometry), ties_(spec, geometry) {
  const std::size_t rows = channels() * patch_words();
  const std::size_t packed = simd::packed_conv_weights_size(channels(), patch_words());
  rows_ = Buffer<std::uint64_t>(rows);
  packed_ = Buffer<std::uint32_t>(packed);
  if (spec.ternary) {
    nonzero_ = Buffer<std::uint64_t>(rows);
    packed_nonzero_ = Buffer<std::uint32_t>(packed);
  }
  threshold_ = Buffer<std::int32_t>(words_for(channels()) * word_bits);
  std::fill(threshold_.begin(), threshold_.end(), -1);
  twin_ = twins_of(ties_.pixel_words());
}

simd::ConvShape BinaryLayer::conv_shape() const {
  const MapShape& input = geometry_.input;
  simd::ConvShape shape;
  shape.out_height = geometry_.output.height;
  shape.out_width = geometry_.output.width;
  shape.out_channels = channels();
  shape.patch_rows = spec_.kernel;
  shape.run_words = spec_.kernel * input.words();
  shape.pitch = input.pitch();
  shape.row_step = spec_.stride * input.pitch();
  shape.column_step = spec_.stride * input.words();
  if (ties_.rows() % word_bits == 0) shape.planes = spec_.thresholds;
  if (!twin_.empty()) {
    shape.twin = twin_.data();
    shape.pixel_words = input.words();
  }
  return shape;
}

void BinaryLayer::set_row(std::size_t o, const std::uint64_t* sign, const std::uint64_t* nonzero) {
  std::copy_n(sign, patch_words(), rows_.data() + o * patch_words());
  simd::pack_conv_weight_row(sign, o, patch_words(), packed_.data());
  if (nonzero == nullptr) return;
  std::copy_n(nonzero, patch_words(), nonzero_.data() + o * patch_words());
  simd::pack_conv_weight_row(nonzero, o, patch_words(), packed_nonzero_.data());
}

void BinaryLayer::forward(const simd::Kernels& kernels, const std::uint64_t* input, std::uint64_t* output) const {
  simd::ConvOutput out;
  out.bits = output;
  out.bits_pitch = geometry_.output.pitch();
  kernels.conv(conv_shape(), input, conv_weights(), {threshold_.data(), nullptr, nullptr}, out);
}

std::size_t BinaryLayer::bit_macs() const {
  return geometry_.output.height * geometry_.output.width * channels() / conv_shape().planes * geometry_.valid_bits;
}

void BinaryLayer::save(TensorFile& file) const {
  const std::vector<std::size_t> shape = {ties_.rows(), ties_.file_words()};
  const auto put = [&](const char* name, const Buffer<std::uint64_t>& rows) {
    std::vector<std::uint64_t> words(shape[0] * shape[1]);
    for (std::size_t o = 0; o < shape[0]; ++o) ties_.to_file(rows.data() + o * patch_words(), words.data() + o * shape[1]);
    file.put(spec_.name + name, shape, words);
  };
  put(".sign", rows_);
  if (spec_.ternary) put(".nonzero", nonzero_);
  file.put(spec_.name + ".threshold", {channels()}, std::span<const std::int32_t>(threshold_.data(), channels()));
}

BinaryLayer BinaryLayer::read(const LayerSpec& spec, const LayerGeometry& geometry, const TensorFile& file) {
  const Ties ties(spec, geometry);
  file.get(spec.name + ".sign", DType::u64, {ties.rows(), ties.file_words()});
  BinaryLayer layer(spec, geometry);
  layer.load(file);
  return layer;
}

void BinaryLayer::load(const TensorFile& file) {
  const std::vector<std::size_t> shape = {ties_.rows(), ties_.file_words()};
  const auto sign = file.get(spec_.name + ".sign", DType::u64, shape).as<std::uint64_t>();
  const std::uint64_t* nonzero = nullptr;
  if (spec_.ternary) nonzero = file.get(spec_.name + ".nonzero", DType::u64, shape).as<std::uint64_t>().data();
  const auto threshold = file.get(spec_.name + ".threshold", DType::i32, {channels()}).as<std::int32_t>();
  std::vector<std::uint64_t> allowed(shape[1]);
  ties_.to_file(valid_bits().data(), allowed.data());
  std::vector<std::uint64_t> row(patch_words());
  std::vector<std::uint64_t> nonzero_row(patch_words());
  for (std::size_t r = 0; r < shape[0]; ++r) {
    const std::uint64_t* const nonzeros = nonzero == nullptr ? allowed.data() : nonzero + r * shape[1];
    for (std::size_t w = 0; w < shape[1]; ++w) {
      if ((sign[r * shape[1] + w] & ~nonzeros[w]) != 0 || (nonzeros[w] & ~allowed[w]) != 0) {
        fail(ErrorKind::data, "{}.sign: row {} sets bits where the layer has no weights", spec_.name, r);
      }
    }
    ties_.from_file(sign.data() + r * shape[1], row.data());
    if (nonzero != nullptr) ties_.from_file(nonzeros, nonzero_row.data());
    for (std::size_t o = r; o < channels(); o += shape[0])
      set_row(o, row.data(), nonzero == nullptr ? nullptr : nonzero_row.data());
  }
  std::copy(threshold.begin(), threshold.end(), threshold_.begin());
}

}  // namespace bitloom::layerwise
