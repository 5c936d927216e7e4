/* Prints the scores that an exported binary net gives images, in hexadecimal: print_scores FILE N, the first N records of a file in
 * CIFAR-10's binary format. Its net is net.h's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net.h"

#define PIXELS (NET_HEIGHT * NET_WIDTH)

int main(int count, char **arguments) {
  static unsigned char record[1 + NET_COLOURS * PIXELS], pixels[NET_COLOURS * PIXELS];
  float scores[NET_CLASSES];
  FILE *file = count == 3 ? fopen(arguments[1], "rb") : NULL;
  long images = count == 3 ? atol(arguments[2]) : 0;
  if (!file) return EXIT_FAILURE;
  for (; images > 0; --images) {
    int k, c;
    if (fread(record, 1, sizeof record, file) != sizeof record) return EXIT_FAILURE;
    for (k = 0; k < PIXELS; ++k) {
      for (c = 0; c < NET_COLOURS; ++c) pixels[k * NET_COLOURS + c] = record[1 + c * PIXELS + k];
    }
    net_scores(pixels, scores);
    for (k = 0; k < NET_CLASSES; ++k) {
      unsigned long bits = 0;
      memcpy(&bits, scores + k, sizeof *scores); /* where bytes of a number begin with the lowest, as everywhere this runs */
      printf("%08lx%c", bits, k + 1 < NET_CLASSES ? ' ' : '\n');
    }
  }
  fclose(file);
  return EXIT_SUCCESS;
}
