// Convolutional nets as plans see them.
#pragma once

#include "core/safetensors.h"
#include "models/cnn/config.h"
#include "plan/float_model.h"

namespace bitloom::plan {

// The layers of models::Cnn with values of type V, as nn counts them; the config has images and classes. Counts that do not
// grow with the micro-batch, batch norm's statistics, count for every image.
FloatModel describe_cnn(const models::CnnConfig& config, DType values);

}  // namespace bitloom::plan
