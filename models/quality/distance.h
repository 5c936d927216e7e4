// How far two sets of images are apart, and how sure and how varied a classifier finds one, from numbers that a net has for
// each image. The usual figures take them from one Inception network; those from another net are figures of their own, to be
// named after it and compared with none but its own.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace bitloom::models {

// Mean (F) and covariance (F,F) of features.
struct FeatureStatistics {
  std::vector<double> mean, covariance;
  std::size_t images = 0;
};
// features (N,F); of the covariance, sums are divided by N - 1. Throws Error(data) for fewer than two images.
FeatureStatistics feature_statistics(std::span<const double> features, std::size_t columns);

// |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)), the squared Wasserstein distance of two normal distributions (Heusel et al.
// 2017, equation 6). Throws Error(internal) for other numbers of features.
double frechet_distance(const FeatureStatistics& a, const FeatureStatistics& b);

// exp of the mean over images of KL(p(y|x) || p(y)) (Salimans et al. 2016, section 4): from 1, where all images get the same
// classes, to the number of classes. Mean and standard deviation over `parts` consecutive parts of the images, whose sizes
// differ by one at most.
struct InceptionScore {
  double mean = 0, deviation = 0;
};
// probabilities (N,classes). Throws Error(usage) that names the field `parts` for more of them than images, or none.
InceptionScore inception_score(std::span<const double> probabilities, std::size_t classes, std::size_t parts);

}  // namespace bitloom::models
