/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes plan creation: whatever the arguments, trees and masks are, the answer is a plan that runs or a status with a message. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <treeattn/attention.h>

/* The input is read from the front as numbers; what is left is the mask. When it ends, zeros follow. */
typedef struct reader {
  const uint8_t *data;
  size_t size;
} reader;

static uint8_t take_byte(reader *r) {
  if (r->size == 0) {
    return 0;
  }
  r->size--;
  return *r->data++;
}

/* Mostly a small number; sometimes an edge of the type. */
static int64_t take_number(reader *r) {
  static const int64_t edges[] = {
      -1,   -2,  INT64_MIN, INT64_MAX, INT32_MAX, INT32_MIN, INT64_C(1) << 31, INT64_C(1) << 32, INT64_C(1) << 62, 1024,
      1025, 512, 513,       64,        65,        0};
  uint8_t low = take_byte(r);
  if (low < 0xe0) {
    return low;
  }
  return low < 0xf0 ? edges[low & 0x0f] : (int64_t)take_byte(r) * 8;
}

static void require(int condition, const char *what, const treeattn_error *error) {
  if (!condition) {
    (void)fprintf(stderr, "%s: %s\n", what, error->message);
    abort();
  }
}

/* Buffers of exactly the size that the plan asks for, so that the sanitizer sees any step outside. */
static void run_plan(const treeattn_plan *plan) {
  treeattn_plan_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  treeattn_error error = {TREEATTN_OK, ""};
  require(treeattn_plan_get_info(plan, &info, &error) == TREEATTN_OK, "a plan without info", &error);
  const size_t most = (size_t)1 << 22;
  if (info.q_bytes > most || info.k_bytes > most || info.v_bytes > most || info.out_bytes > most ||
      info.lse_bytes > most || info.scratch_bytes > (size_t)1 << 26 ||
      (info.q_bytes / 4) * (info.k_bytes / 2) > (size_t)1 << 28) {
    return;
  }
  treeattn_run_args run;
  memset(&run, 0, sizeof run);
  run.struct_size = sizeof run;
  void *memory[] = {calloc(info.q_bytes, 1), calloc(info.k_bytes, 1), calloc(info.v_bytes, 1),
                    malloc(info.out_bytes),  malloc(info.lse_bytes),  malloc(info.scratch_bytes)};
  run.q = memory[0];
  run.q_bytes = info.q_bytes;
  run.k = memory[1];
  run.k_bytes = info.k_bytes;
  run.v = memory[2];
  run.v_bytes = info.v_bytes;
  run.out = memory[3];
  run.out_bytes = info.out_bytes;
  run.lse = memory[4];
  run.lse_bytes = info.lse_bytes;
  run.scratch = memory[5];
  run.scratch_bytes = info.scratch_bytes;
  require(treeattn_attend(plan, &run, &error) == TREEATTN_OK, "a plan that does not run", &error);
  for (size_t n = 0; n < sizeof memory / sizeof memory[0]; n++) {
    free(memory[n]);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  enum { MOST_REQUESTS = 3, MOST_NODES = 3000, PAGES = 8 };
  reader r = {data, size};
  treeattn_request requests[MOST_REQUESTS];
  int32_t page_tables[MOST_REQUESTS][PAGES], queries[MOST_REQUESTS][4], *positions[MOST_REQUESTS] = {NULL};
  treeattn_plan_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.request_bytes = sizeof requests[0];
  args.requests = requests;
  args.num_requests = take_byte(&r) % (MOST_REQUESTS + 1);
  const uint8_t optional = take_byte(&r);
  args.num_kv_heads = take_number(&r);
  args.num_heads =
      (optional & 1) != 0 ? take_number(&r) : (int64_t)((uint64_t)args.num_kv_heads * (1u + take_byte(&r) % 5u));
  args.head_dim = (optional & 2) != 0 ? take_number(&r) : 8 * (1 + take_byte(&r) % 16);
  args.head_dim_v = (optional & 4) != 0 ? take_number(&r) : 0;
  args.kv_dtype = (treeattn_dtype)(take_byte(&r) % 5);
  args.scale = (float)take_number(&r) / 64.0f;
  args.softcap = (optional & 8) != 0 ? (float)take_number(&r) : 0.0f;
  args.window = (optional & 16) != 0 ? take_number(&r) : 0;
  args.page_size = (optional & 32) != 0 ? take_number(&r) : 0;
  args.num_pages = args.page_size != 0 ? take_number(&r) : 0;
  args.kv_capacity = args.page_size == 0 ? take_number(&r) : 0;
  args.num_workers = take_number(&r);
  if ((optional & 64) != 0) {
    int64_t *const strides[] = {&args.q_stride_head,     &args.q_stride_row,   &args.out_stride_row,
                                &args.out_stride_head,   &args.lse_stride_row, &args.lse_stride_head,
                                &args.k_stride_sequence, &args.k_stride_head,  &args.k_stride_slot,
                                &args.v_stride_sequence, &args.v_stride_head,  &args.v_stride_slot};
    for (size_t n = 0; n < sizeof strides / sizeof strides[0]; n++) {
      *strides[n] = take_number(&r);
    }
  }
  if ((optional & 128) != 0) {
    args.isa = (treeattn_isa)(take_byte(&r) % 7);
    args.mode = (treeattn_mode)(take_byte(&r) % 3);
    args.num_sequences = take_number(&r);
    args.q_dtype = (treeattn_dtype)(take_byte(&r) % 5);
  }
  void *masks[MOST_REQUESTS] = {NULL};
  for (int64_t n = 0; n < args.num_requests; n++) {
    treeattn_request *request = &requests[n];
    const treeattn_request initial = TREEATTN_REQUEST_INIT;
    *request = initial;
    const uint8_t more = take_byte(&r);
    request->num_nodes = take_number(&r);
    if (request->num_nodes > MOST_NODES) {
      request->num_nodes =
          (more & 1) != 0 ? INT64_MAX : MOST_NODES; /* a chain of any length is legal, and slow to write down */
    }
    request->prefix_len = (more & 2) != 0 ? TREEATTN_AUTO : take_number(&r);
    request->kv_seq_len = (more & 4) != 0 ? TREEATTN_AUTO : take_number(&r);
    request->mask_kind = (treeattn_mask_kind)(take_byte(&r) % 7);
    request->mask_stride = (more & 8) != 0 ? take_number(&r) : 0;
    request->mask_columns = (more & 16) != 0 ? take_number(&r) : 0;
    request->cache_index = (more & 32) != 0 ? take_number(&r) : 0;
    const size_t nodes = request->num_nodes > 0 && request->num_nodes <= MOST_NODES ? (size_t)request->num_nodes : 0;
    if ((more & 64) != 0) {
      positions[n] = calloc(nodes + 1, sizeof *positions[n]);
      for (size_t i = 0; i < nodes; i++) {
        positions[n][i] = (int32_t)take_number(&r);
      }
      request->positions = positions[n];
    }
    if ((more & 128) != 0) {
      request->num_queries = take_byte(&r) % 5;
      for (int64_t q = 0; q < request->num_queries; q++) {
        queries[n][q] = (int32_t)take_number(&r);
      }
      request->query_nodes = queries[n];
    }
    if (args.page_size != 0) {
      request->page_table = page_tables[n];
      request->page_table_len = PAGES;
      for (int page = 0; page < PAGES; page++) {
        page_tables[n][page] = (int32_t)take_byte(&r) - 1;
      }
    }
    /* The mask: a share of the rest, in memory of its own. A tree's numbers are bytes with a sign, or nothing would ever be valid. */
    size_t bytes = r.size / (size_t)(args.num_requests - n);
    if (request->mask_kind == TREEATTN_MASK_PARENTS || request->mask_kind == TREEATTN_MASK_INTERVALS) {
      masks[n] = malloc(bytes * sizeof(int32_t));
      for (size_t i = 0; i < bytes; i++) {
        const int32_t number = (int32_t)take_byte(&r) - 1;
        memcpy((uint8_t *)masks[n] + i * sizeof number, &number, sizeof number);
      }
      bytes *= sizeof(int32_t);
    } else if (request->mask_kind != TREEATTN_MASK_CHAIN) {
      masks[n] = malloc(bytes);
      if (bytes > 0) {
        memcpy(masks[n], r.data, bytes);
      }
      r.data += bytes;
      r.size -= bytes;
    } else {
      bytes = 0;
    }
    request->mask = masks[n];
    request->mask_bytes = bytes;
  }
  treeattn_plan *plan = NULL;
  treeattn_error error = {TREEATTN_OK, ""};
  const treeattn_status status = treeattn_plan_create(&args, &plan, &error);
  require((status == TREEATTN_OK) == (plan != NULL), "status and plan disagree", &error);
  if (status == TREEATTN_OK) {
    run_plan(plan);
  } else {
    require(error.status == status && error.message[0] != '\0' && strchr(error.message, '\n') == NULL,
            "a status without a message", &error);
  }
  treeattn_plan_destroy(plan);
  for (int n = 0; n < MOST_REQUESTS; n++) {
    free(masks[n]);
    free(positions[n]);
  }
  return 0;
}
