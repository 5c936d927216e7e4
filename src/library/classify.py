#!/usr/bin/env python3
"""classify.py MODEL IMAGE...: the classes of PPM images, by libbitloom through ctypes."""
import ctypes
import re
import sys

library = ctypes.CDLL("libbitloom.so.0")
library.bitloom_error.restype = library.bitloom_class_name.restype = ctypes.c_char_p
for name in ("height", "width", "colours", "classes"):
    getattr(library, f"bitloom_{name}").restype = ctypes.c_size_t

net = ctypes.c_void_p()
if library.bitloom_load(sys.argv[1].encode(), ctypes.byref(net)) != 0:
    sys.exit(library.bitloom_error().decode())
height, width, classes = library.bitloom_height(net), library.bitloom_width(net), library.bitloom_classes(net)
scores = (ctypes.c_float * classes)()
for name in sys.argv[2:]:
    image = open(name, "rb").read()
    header = re.match(rb"P6\s+(\d+)\s+(\d+)\s+255\s", image)
    if not header or (int(header[1]), int(header[2])) != (width, height) or len(image) - header.end() != 3 * width * height:
        sys.exit(f"{name}: not a PPM image of {width} x {height} pixels, 255 and no comments")
    if library.bitloom_scores(net, image[header.end():], ctypes.c_size_t(1), scores) != 0:
        sys.exit(library.bitloom_error().decode())
    print(f"{name}: {library.bitloom_class_name(net, ctypes.c_size_t(max(range(classes), key=scores.__getitem__))).decode()}")
library.bitloom_free(net)
