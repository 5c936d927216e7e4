// The polynomial by which Muon (Jordan et al. 2024) pushes the singular values of a matrix towards 1.
#pragma once

#include <cstddef>

namespace bitloom::optim {

// Each step maps a singular value x to a x + b x^3 + c x^5. After five those above a hundredth or so are between 0.7 and 1.2.
inline constexpr std::size_t newton_schulz_steps = 5;
// Where singular values begin nearer to 1 (layerwise/orthogonal.h) fewer do.
inline constexpr std::size_t newton_schulz_steps_of_binary = 3;
inline constexpr double newton_schulz_a = 3.4445, newton_schulz_b = -4.7750, newton_schulz_c = 2.0315;

}  // namespace bitloom::optim
