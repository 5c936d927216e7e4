#include "cli/export_onnx.h"

#include <string>

#include "core/file.h"
#include "models/binary/onnx.h"

namespace bitloom::cli {

void export_onnx(Terminal& terminal, const layerwise::Model& model, const layerwise::Views& views,
                 const std::filesystem::path& out) {
  const std::string file = models::to_onnx(model, views);
  write_atomically(out, file);
  const data::ImageShape& shape = model.encoder.image_shape();
  terminal.print(
      "{}: ONNX, {} KiB. Input image, bytes (N, {}, {}, {}); output scores, log-probabilities (N, {}), the mean of {} votes",
      out.string(), file.size() / 1024, shape.channels, shape.height, shape.width, model.class_names.size(),
      views.count() * model.net.classifier.size());
}

}  // namespace bitloom::cli
