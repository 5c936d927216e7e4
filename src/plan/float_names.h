// Float models by the names that papers give them.
#pragma once

#include <span>
#include <string_view>

#include "plan/float_model.h"

namespace bitloom::plan {

// A model of the papers' tables.
struct PaperModel {
  const char* name;
  double parameters;  // as printed
  FloatModel (*describe)();
};
// Tables 1 of Shoeybi et al. 2019 and Huang et al. 2019, and figure 3 of the latter.
std::span<const PaperModel> paper_models();

// "amoebanet-d(L,F)", "transformer-L" and "t(L,H,A)" of any sizes (see float_model.h), and GPTs by models::named_gpts() with
// GPT-2's vocabulary; upper case and spaces as papers print them, "AmoebaNet-D (18,208)" and "GPT 8.3B", are taken too. Throws
// Error(usage) that lists what there is, or names the size that is not possible.
FloatModel find_model(std::string_view name);

}  // namespace bitloom::plan
