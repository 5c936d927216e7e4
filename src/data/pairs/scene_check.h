// The scene (scene.h) that a picture shows, found by fitting every shape: it judges what models generate, which is blurred and
// noisy, and pictures that show no scene at all.
#pragma once

#include "core/progress.h"
#include "data/image.h"
#include "data/pairs/pairs.h"
#include "data/pairs/scene.h"

namespace bitloom::data {

struct SeenScene {
  Scene scene;     // all `nothing` where no shape fits; the place alone where it is none
  double fit = 0;  // cosine between what differs from the ground, but for its noise, and the best shape in its colour, 0 to 1
};

// Smallest fit of a picture that shows a shape.
inline constexpr double scene_fit = 0.8;

// `image` is 3 x side x side, 16 <= side <= 512; throws Error(usage) otherwise. The ground is the median of the border; the
// colour is the palette's that is nearest in direction from there, which blur does not change; shape, size and place are those
// of the template, drawn with several widths of blur, that fits best.
//
// Measured with 288 scenes at sides 32 and 64: all are seen right up to a Gaussian blur of 1 pixel (at side 32) with noise of
// 10 levels; 99% with noise of 20 alone; 98% with a blur of 1.5 and noise of 10; 92% with a blur of 2 and noise of 5, where
// shapes get confused; 96% with noise of 30, where small shapes are missed.
SeenScene see_scene(const Image& image);

// Number of pictures of which parts are right.
struct SceneScore {
  std::size_t pictures = 0, colour = 0, shape = 0, size = 0, place = 0;
  std::size_t colour_and_shape = 0, all = 0;  // all that was asked for
  std::size_t none = 0;                       // without any scene

  // Counts a scene that was asked for and what is seen of it; fields not asked for are right.
  void add(const Scene& asked, const Scene& seen);
};

// Looks at the image of every pair whose caption is that of a scene, cut in the centre, on all threads. Throws what
// read_image() throws.
SceneScore score_scenes(const Pairs& pairs, ProgressSink* progress = nullptr);

}  // namespace bitloom::data
