#include "models/quality/distance.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/field.h"

namespace bitloom::models {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const Matrix>;

Eigen::Index index(std::size_t n) { return static_cast<Eigen::Index>(n); }

ConstMap covariance_of(const FeatureStatistics& statistics) {
  const Eigen::Index size = index(statistics.mean.size());
  return {statistics.covariance.data(), size, size};
}

// Eigenvalues of a covariance below 0 are rounding.
Eigen::VectorXd roots(const Eigen::VectorXd& eigenvalues) { return eigenvalues.cwiseMax(0).cwiseSqrt(); }

// tr((A B)^(1/2)) of covariances: A B has the eigenvalues of A^(1/2) B A^(1/2), which is symmetric.
double trace_of_root(const ConstMap& a, const ConstMap& b) {
  const Eigen::SelfAdjointEigenSolver<Matrix> of_a(a);
  const Matrix half = roots(of_a.eigenvalues()).asDiagonal() * of_a.eigenvectors().transpose();
  const Matrix product = half * b * half.transpose();
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(0.5 * (product + product.transpose()), Eigen::EigenvaluesOnly);
  return roots(solver.eigenvalues()).sum();
}

}  // namespace

FeatureStatistics feature_statistics(std::span<const double> features, std::size_t columns) {
  const std::size_t images = columns == 0 ? 0 : features.size() / columns;
  if (images < 2) fail(ErrorKind::data, "{} images; expected at least 2, of which features have a covariance", images);
  const ConstMap rows(features.data(), index(images), index(columns));
  const Eigen::RowVectorXd mean = rows.colwise().mean();
  const Matrix centred = rows.rowwise() - mean;
  const Matrix covariance = centred.transpose() * centred / static_cast<double>(images - 1);
  return {{mean.data(), mean.data() + mean.size()}, {covariance.data(), covariance.data() + covariance.size()}, images};
}

double frechet_distance(const FeatureStatistics& a, const FeatureStatistics& b) {
  if (a.mean.size() != b.mean.size()) {
    fail(ErrorKind::internal, "{} features beside {}", a.mean.size(), b.mean.size());
  }
  const Eigen::Map<const Eigen::VectorXd> mean_a(a.mean.data(), index(a.mean.size()));
  const Eigen::Map<const Eigen::VectorXd> mean_b(b.mean.data(), index(b.mean.size()));
  const ConstMap of_a = covariance_of(a);
  const ConstMap of_b = covariance_of(b);
  return (mean_a - mean_b).squaredNorm() + of_a.trace() + of_b.trace() - 2 * trace_of_root(of_a, of_b);
}

InceptionScore inception_score(std::span<const double> probabilities, std::size_t classes, std::size_t parts) {
  const std::size_t images = probabilities.size() / classes;
  if (parts == 0 || parts > images) {
    fail_field(ErrorKind::usage, "parts", "{}; expected 1 to the {} images", parts, images);
  }
  std::vector<double> scores;
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t first = part * images / parts;
    const std::size_t last = (part + 1) * images / parts;
    std::vector<double> mean(classes);
    for (std::size_t i = first * classes; i < last * classes; ++i) {
      mean[i % classes] += probabilities[i] / static_cast<double>(last - first);
    }
    double divergence = 0;
    for (std::size_t i = first * classes; i < last * classes; ++i) {
      const double p = probabilities[i];
      if (p > 0) divergence += p * std::log(p / mean[i % classes]);
    }
    scores.push_back(std::exp(divergence / static_cast<double>(last - first)));
  }
  InceptionScore result;
  for (const double score : scores) result.mean += score / static_cast<double>(parts);
  double squares = 0;
  for (const double score : scores) squares += (score - result.mean) * (score - result.mean);
  result.deviation = std::sqrt(squares / static_cast<double>(parts));
  return result;
}

}  // namespace bitloom::models
