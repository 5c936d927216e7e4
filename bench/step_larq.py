#!/usr/bin/env python3
"""Training steps of bench/step_peers.py's layers in larq on TensorFlow, for it to run: larq needs packages of its own.

step_larq.py THREADS STEPS: prints one line of JSON: the milliseconds of each of STEPS steps per layer, after two that are not
counted, and the versions.
"""
import json
import os
import sys

from step_peers import BATCH, CLASSES, GRID, LAYERS, step_milliseconds


def make_step(tf, larq, channels, width, size):
    """A function that does one training step in f32 and returns the loss as a number."""
    tf.keras.utils.set_random_seed(1)
    signs = 2.0 * tf.cast(tf.random.uniform((BATCH, size, size, channels)) < 0.5, tf.float32) - 1.0
    labels = tf.random.uniform((BATCH,), maxval=CLASSES, dtype=tf.int32)
    model = tf.keras.Sequential([
        larq.layers.QuantConv2D(width, 3, padding="same", use_bias=False, kernel_quantizer="ste_sign",
                                kernel_constraint="weight_clip", input_shape=(size, size, channels)),
        tf.keras.layers.BatchNormalization(),
        larq.quantizers.SteSign(),
        tf.keras.layers.AveragePooling2D(size // GRID),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(CLASSES),
    ])
    optimiser = tf.keras.optimizers.Adam(1e-3)
    entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = entropy(labels, model(signs, training=True))
        variables = model.trainable_variables
        optimiser.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return lambda: float(step())


def main():
    threads, steps = int(sys.argv[1]), int(sys.argv[2])
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import larq
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    result = {"tensorflow": tf.__version__, "larq": larq.__version__, "milliseconds": {}}
    for name, channels, width, size in LAYERS:
        step = make_step(tf, larq, channels, width, size)
        result["milliseconds"][name] = step_milliseconds(step, steps, 2, "larq")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
