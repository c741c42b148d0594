/* SPDX-License-Identifier: Apache-2.0 */
/* Status codes, error messages, element types and versions shared by every part of the API. */
#ifndef TREEATTN_BASE_H
#define TREEATTN_BASE_H

#include <stddef.h>
#include <stdint.h>

#if defined(TREEATTN_STATIC)
#define TREEATTN_API
#elif defined(_WIN32)
#ifdef TREEATTN_BUILDING
#define TREEATTN_API __declspec(dllexport)
#else
#define TREEATTN_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define TREEATTN_API __attribute__((visibility("default")))
#else
#define TREEATTN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define TREEATTN_VERSION_MAJOR 0
#define TREEATTN_VERSION_MINOR 1
#define TREEATTN_VERSION_PATCH 0
#define TREEATTN_VERSION_STRING "0.1.0"

/*
 * Conventions of the whole API
 *
 *  - Every fallible function returns a treeattn_status and takes, last, a treeattn_error * that may be NULL.
 *    On failure it holds one line that names the offending field and its value; on success it is left alone.
 *  - On failure no output buffer has been written.
 *  - Structs that grow over time begin with `size_t struct_size`; set it with the matching TREEATTN_*_INIT.
 *    A field that is zero means "the default" unless its comment says otherwise.
 *  - Memory belongs to the caller. Functions that need working memory have a size query beside them.
 *    Only functions named *_create allocate, with malloc, and the matching *_destroy accepts NULL.
 *  - The library keeps no global state that a caller can see, prints nothing, never exits,
 *    and reads neither the environment nor any file. All functions may be called from any thread;
 *    one object may be used by several threads at once as long as nobody writes to it.
 *  - Strides count elements, sizes named `_bytes` count bytes, and lengths are int64_t.
 */

/* What went wrong. Values are stable. */
typedef enum treeattn_status {
  TREEATTN_OK = 0,
  TREEATTN_ERROR_INVALID_ARGUMENT = 1, /* a field is outside its documented range, or two fields disagree */
  TREEATTN_ERROR_INVALID_TREE = 2,  /* a parent out of order or out of range, a cycle, a bad interval, a bad position */
  TREEATTN_ERROR_INVALID_MASK = 3,  /* a NaN or +infinity in a dense f32 mask */
  TREEATTN_ERROR_INVALID_VALUE = 4, /* a NaN where a number is required: logits, probabilities, scores, sinks */
  TREEATTN_ERROR_UNSUPPORTED = 5,   /* a legal request that this build or this machine cannot serve */
  TREEATTN_ERROR_BUFFER_TOO_SMALL = 6, /* a buffer holds fewer bytes than its shape needs */
  TREEATTN_ERROR_OVERFLOW = 7,         /* a product of sizes does not fit in 64 bits */
  TREEATTN_ERROR_OUT_OF_MEMORY = 8, /* malloc failed (only *_create functions and the seed-compatible entry points) */
  TREEATTN_ERROR_BACKEND = 9        /* an accelerator's driver or an executor reported a failure */
} treeattn_status;

#define TREEATTN_ERROR_MESSAGE_BYTES 256

/* A failure in words. Put it on the stack and pass its address; it needs no initialisation. */
typedef struct treeattn_error {
  treeattn_status status;
  char message[TREEATTN_ERROR_MESSAGE_BYTES]; /* NUL-terminated, one line, no final period */
} treeattn_error;

/* A short constant name for a status, e.g. "invalid argument"; "unknown status" for any other value. */
TREEATTN_API const char *treeattn_status_name(treeattn_status status);

/* Element types. Values are stable. */
typedef enum treeattn_dtype {
  TREEATTN_F32 = 1, /* IEEE binary32 */
  TREEATTN_F16 = 2, /* IEEE binary16 */
  TREEATTN_BF16 = 3 /* the upper 16 bits of a binary32 */
} treeattn_dtype;

/* "f32", "f16", "bf16"; "unknown" for any other value. */
TREEATTN_API const char *treeattn_dtype_name(treeattn_dtype dtype);
/* 4, 2, 2; 0 for any other value. */
TREEATTN_API size_t treeattn_dtype_bytes(treeattn_dtype dtype);

/* The version of the library that is linked, as in TREEATTN_VERSION_STRING. */
TREEATTN_API const char *treeattn_version(void);

#ifdef __cplusplus
}
#endif
#endif
