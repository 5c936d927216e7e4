/* libbitloom: trained binary nets for programs in C, and in whatever calls C. `bitloom train binary` makes them; a
 * model.safetensors is read as it is.
 *
 *   bitloom_net *net;
 *   if (bitloom_load("model.safetensors", &net) != BITLOOM_OK) { puts(bitloom_error()); return 1; }
 *   bitloom_scores(net, pixels, 1, scores);
 *   bitloom_free(net);
 *
 * Every function may be called by any number of threads at once, with the same net too, but bitloom_free(), bitloom_set_views()
 * and bitloom_set_sure(): no other thread may be using that net meanwhile. */
#ifndef BITLOOM_H
#define BITLOOM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Return values of functions: the exit codes of the program `bitloom`, where it has them. */
enum bitloom_status {
  BITLOOM_OK = 0,
  BITLOOM_BAD_ARGUMENT = 2, /* a null pointer, options that do not fit the net */
  BITLOOM_BAD_DATA = 3,     /* no such file, not a binary net, of another version, damaged */
  BITLOOM_SYSTEM = 5,       /* the operating system refused: no memory, ... */
  BITLOOM_INTERNAL = 70     /* a fault of Bitloom's */
};

/* The text of the last error in this thread: names the file or argument and what was expected. "" if there was none. It holds
 * until the thread's next call. */
const char* bitloom_error(void);

/* The version of the library, "0.1.0". */
const char* bitloom_version(void);

/* A trained net. */
typedef struct bitloom_net bitloom_net;

/* Reads a model file into *net, which bitloom_free() takes. On an error *net is NULL. */
int bitloom_load(const char* file, bitloom_net** net);

/* Null is allowed. */
void bitloom_free(bitloom_net* net);

/* Size of the images that the net takes, and number of classes that it tells apart. 0 if `net` is null. */
size_t bitloom_height(const bitloom_net* net);
size_t bitloom_width(const bitloom_net* net);
size_t bitloom_colours(const bitloom_net* net);
size_t bitloom_classes(const bitloom_net* net);

/* The name of a class, 0 to bitloom_classes() - 1, in UTF-8; NULL beyond. It holds until the net is freed. */
const char* bitloom_class_name(const bitloom_net* net, size_t label);

/* How well each class fits each of `count` images: (count, classes) scores; an image's largest is that of its class. They are
 * natural logarithms of probabilities, averaged over the net's heads and views of an image, the bits of `bitloom predict`.
 * pixels: (count, height, width, colours) bytes, 0 to 255; red, green, blue if there are three. In one thread, the caller's. */
int bitloom_scores(const bitloom_net* net, const unsigned char* pixels, size_t count, float* scores);

/* The views of an image over which scores are averaged from now on, instead of those that the net was trained for: with its
 * mirror image if `mirror` is not 0, and with the images moved by `shift` pixels up, down, left and right if that is not 0. One
 * view alone is the fastest. Not while other threads use the net. */
int bitloom_set_views(bitloom_net* net, int mirror, size_t shift);

/* The probability of its likeliest class with which an image has no more views, above 0 and at most 1, instead of what the net
 * was trained for. Scores are then those of the views until then, for many images of the first alone. 1: every image has all
 * views. Not while other threads use the net. */
int bitloom_set_sure(bitloom_net* net, double probability);

#ifdef __cplusplus
}
#endif

#endif
