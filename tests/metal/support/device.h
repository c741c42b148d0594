/* SPDX-License-Identifier: Apache-2.0 */
/* Metal objects for tests in C; the same on the framework and on its stand-in. */
#ifndef TESTS_METAL_DEVICE_H
#define TESTS_METAL_DEVICE_H

#include <stddef.h>

void *device_new(void);
/* Shared storage, filled with 0xff. */
void *device_buffer(void *device, size_t bytes);
/* Shared storage, not touched. */
void *device_untouched_buffer(void *device, size_t bytes);
void *device_private_buffer(void *device, size_t bytes);
unsigned char *device_contents(void *buffer);
void device_release(void *object);

/* A command buffer of the test's own. The encoder is one of its. */
typedef struct device_commands {
  void *queue, *command_buffer, *encoder;
} device_commands;
device_commands device_commands_begin(void *device);
void device_commands_open_encoder(device_commands *commands);
/* Ends the encoder if one is open, commits and waits. 1 if everything ran; otherwise `message` says why not. */
int device_commands_finish(device_commands *commands, char *message, size_t message_bytes);

#endif
