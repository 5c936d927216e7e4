/* classify MODEL IMAGE...: the classes of PPM images, by libbitloom.
 *
 * cc classify.c -lbitloom -o classify */
#include <bitloom.h>
#include <stdio.h>
#include <stdlib.h>

static int classify(const bitloom_net *net, const char *name) {
  const size_t height = bitloom_height(net), width = bitloom_width(net), classes = bitloom_classes(net);
  const size_t size = height * width * 3;
  unsigned char *pixels = malloc(size);
  float *scores = malloc(classes * sizeof *scores);
  FILE *file = fopen(name, "rb");
  size_t wide = 0, high = 0, most = 0, best = 0, l;
  int done = 0;
  if (!pixels || !scores || !file || fscanf(file, "P6 %zu %zu %zu", &wide, &high, &most) != 3 || getc(file) == EOF ||
      wide != width || high != height || most != 255 || fread(pixels, 1, size, file) != size) {
    fprintf(stderr, "%s: not a PPM image of %zu x %zu pixels, 255 and no comments\n", name, width, height);
  } else if (bitloom_scores(net, pixels, 1, scores) != BITLOOM_OK) {
    fprintf(stderr, "%s: %s\n", name, bitloom_error());
  } else {
    for (l = 1; l < classes; ++l) best = scores[l] > scores[best] ? l : best;
    printf("%s: %s\n", name, bitloom_class_name(net, best));
    done = 1;
  }
  if (file) fclose(file);
  free(scores);
  free(pixels);
  return done;
}

int main(int count, char **arguments) {
  bitloom_net *net;
  int i, failed = 0;
  if (count < 3) {
    fprintf(stderr, "usage: %s MODEL IMAGE...\n", arguments[0]);
    return EXIT_FAILURE;
  }
  if (bitloom_load(arguments[1], &net) != BITLOOM_OK || bitloom_colours(net) != 3) {
    fprintf(stderr, "%s: %s\n", arguments[1], *bitloom_error() ? bitloom_error() : "its images have no three colours");
    return EXIT_FAILURE;
  }
  for (i = 2; i < count; ++i) failed |= !classify(net, arguments[i]);
  bitloom_free(net);
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
