/* @about@ */
#ifndef @GUARD@
#define @GUARD@

#ifdef __cplusplus
extern "C" {
#endif

#define @NAME@_HEIGHT @height@
#define @NAME@_WIDTH @width@
#define @NAME@_COLOURS @colours@
#define @NAME@_CLASSES @classes@

/* The names of the classes. */
extern const char *const @name@_classes[@NAME@_CLASSES];

/* How well each class fits an image: @NAME@_CLASSES scores, the largest is that of the class. They are natural logarithms of
 * probabilities, averaged over @votes@. `pixels`: @NAME@_HEIGHT rows of @NAME@_WIDTH pixels, each a byte for every colour
 * (@NAME@_COLOURS: red, green, blue if there are three), as in a PPM file. */
void @name@_scores(const unsigned char *pixels, float *scores);

#ifdef __cplusplus
}
#endif

#endif
