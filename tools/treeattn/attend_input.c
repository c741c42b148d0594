/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the tensors of `treeattn attend` in one file or several and makes a request of them. */
#include "attend_input.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"

const char *const attend_role_names[ATTEND_NUM_ROLES] = {"q", "k", "v", "parents", "mask", "sinks", "positions"};

/* Where a tensor is, or would be: its file and its name there. */
typedef struct place {
  io_file *file;
  char name[48];
} place;

static bool is_per_layer(attend_role role) {
  return role != ATTEND_PARENTS;
}

static bool is_required(attend_role role) {
  return role == ATTEND_Q || role == ATTEND_K || role == ATTEND_V;
}

/* With --layer the tensor of that layer; what all layers share may also go without the prefix, and so may any tensor
 * in a file of its own. */
static place find_place(const attend_source *source, const attend_input *input, attend_role role) {
  place found = {.file = input->files[role]};
  const bool own_file = found.file != NULL;
  if (!own_file) {
    found.file = input->files[ATTEND_NUM_ROLES];
  }
  const char *plain = attend_role_names[role];
  if (source->layer >= 0 && is_per_layer(role)) {
    (void)snprintf(found.name, sizeof found.name, "layer%" PRId64 ".%s", source->layer, plain);
    if ((is_required(role) && !own_file) || (found.file != NULL && io_find(found.file, found.name) != NULL)) {
      return found;
    }
  }
  (void)snprintf(found.name, sizeof found.name, "%s", plain);
  return found;
}

static bool is_present(const place *where) {
  return where->file != NULL && io_find(where->file, where->name) != NULL;
}

static bool open_files(const attend_source *source, attend_input *input) {
  if (source->path != NULL && !io_open(source->path, NULL, &input->files[ATTEND_NUM_ROLES])) {
    return false;
  }
  for (int role = 0; role < ATTEND_NUM_ROLES; ++role) {
    const char *path = source->role_paths[role];
    if (path != NULL && !io_open(path, attend_role_names[role], &input->files[role])) {
      return false;
    }
    if (path != NULL) {
      const place where = find_place(source, input, (attend_role)role);
      if (!is_present(&where)) {
        (void)cli_error("%s: there is no tensor '%s'", path, where.name);
        return false;
      }
    }
  }
  return true;
}

/* "(its layers are 0, 1, 7: use --layer)" helps more than "no tensor 'q'" alone. */
static void report_missing(const attend_source *source, const place *where) {
  char layers[256] = "";
  size_t used = 0;
  for (size_t t = 0; t < io_num_tensors(where->file) && used < sizeof layers - 32; ++t) {
    int64_t layer = 0;
    int length = 0;
    const char *name = io_tensor_at(where->file, t)->name;
    if (sscanf(name, "layer%9" SCNd64 ".%n", &layer, &length) == 1 && length > 0 && strcmp(name + length, "q") == 0) {
      used += (size_t)snprintf(layers + used, sizeof layers - used, "%s%" PRId64, used > 0 ? ", " : "", layer);
    }
  }
  if (used > 0) {
    (void)cli_error("%s: there is no tensor '%s' (its layers are %s: %s)", io_path(where->file), where->name, layers,
                    source->layer >= 0 ? "choose one of them" : "use --layer");
  } else {
    (void)cli_error("%s: there is no tensor '%s'", io_path(where->file), where->name);
  }
}

static bool get_required(const attend_source *source, const attend_input *input, attend_role role, unsigned dtypes,
                         const int64_t *shape, const io_tensor **tensor) {
  const place where = find_place(source, input, role);
  if (!is_present(&where)) {
    report_missing(source, &where);
    return false;
  }
  return io_get(where.file, where.name, dtypes, 3, shape, tensor);
}

static bool get_cache(const attend_source *source, attend_input *input) {
  const int64_t q_shape[] = {IO_FREE, IO_FREE, IO_FREE};
  if (!get_required(source, input, ATTEND_Q, IO_F32, q_shape, &input->q)) {
    return false;
  }
  input->num_heads = input->q->shape[0];
  input->num_nodes = input->q->shape[1];
  input->head_dim = input->q->shape[2];
  const int64_t k_shape[] = {IO_FREE, IO_FREE, input->head_dim};
  if (!get_required(source, input, ATTEND_K, IO_KV, k_shape, &input->k)) {
    return false;
  }
  input->num_kv_heads = input->k->shape[0];
  input->kv_capacity = input->k->shape[1];
  input->kv_dtype = io_dtype_to_treeattn(input->k->dtype);
  const int64_t v_shape[] = {input->num_kv_heads, input->kv_capacity, IO_FREE};
  if (!get_required(source, input, ATTEND_V, (unsigned)input->k->dtype, v_shape, &input->v)) {
    return false;
  }
  input->head_dim_v = input->v->shape[2];
  return true;
}

/* An option that names a file outweighs what the common file holds. */
static bool choose_visibility(const attend_source *source, const attend_input *input, place *parents, place *mask) {
  *parents = find_place(source, input, ATTEND_PARENTS);
  *mask = find_place(source, input, ATTEND_MASK);
  const bool own_parents = source->role_paths[ATTEND_PARENTS] != NULL;
  const bool own_mask = source->role_paths[ATTEND_MASK] != NULL;
  if (own_parents != own_mask) {
    (own_parents ? mask : parents)->file = NULL;
  }
  if (is_present(parents) && is_present(mask)) {
    (void)cli_error("%s: 'parents' and '%s' both say what a node sees: only one of them can be given",
                    io_path(mask->file), mask->name);
    return false;
  }
  return true;
}

static bool get_visibility(const attend_source *source, attend_input *input) {
  place parents, mask;
  if (!choose_visibility(source, input, &parents, &mask)) {
    return false;
  }
  treeattn_request *request = &input->request;
  if (is_present(&parents)) {
    const int64_t shape[] = {input->num_nodes};
    const int32_t *values;
    if (!io_get_i32(parents.file, parents.name, 1, shape, NULL, &values)) {
      return false;
    }
    request->mask_kind = TREEATTN_MASK_PARENTS;
    request->mask = values;
    request->mask_bytes = (size_t)input->num_nodes * sizeof *values;
  } else if (is_present(&mask)) {
    const int64_t shape[] = {input->num_nodes, IO_FREE};
    const io_tensor *tensor;
    if (!io_get(mask.file, mask.name, IO_F32 | IO_BOOL | IO_U8, 2, shape, &tensor)) {
      return false;
    }
    request->mask_kind = tensor->dtype == IO_F32 ? TREEATTN_MASK_DENSE_F32 : TREEATTN_MASK_DENSE_BOOL;
    request->mask = tensor->data;
    request->mask_bytes = tensor->bytes;
    request->mask_stride = tensor->shape[1];
  }
  return true;
}

static bool get_extras(const attend_source *source, attend_input *input) {
  const place sinks = find_place(source, input, ATTEND_SINKS);
  if (is_present(&sinks)) {
    const int64_t shape[] = {input->num_heads};
    if (!io_get_f32(sinks.file, sinks.name, 1, shape, NULL, &input->sinks)) {
      return false;
    }
  }
  const place positions = find_place(source, input, ATTEND_POSITIONS);
  if (is_present(&positions)) {
    const int64_t shape[] = {input->num_nodes};
    if (!io_get_i32(positions.file, positions.name, 1, shape, NULL, &input->request.positions)) {
      return false;
    }
  }
  return true;
}

/* A mask ties prefix and length together (its rows are the last slots); a tree leaves room for slots that hold
 * nothing. */
static bool set_lengths(const attend_source *source, attend_input *input) {
  treeattn_request *request = &input->request;
  const int64_t num_nodes = input->num_nodes, capacity = input->kv_capacity;
  const bool masked = request->mask_kind == TREEATTN_MASK_DENSE_F32 || request->mask_kind == TREEATTN_MASK_DENSE_BOOL;
  const bool has_prefix_len = source->prefix_len >= 0, has_kv_len = source->kv_len >= 0;
  if (has_prefix_len && source->prefix_len > INT64_MAX - num_nodes) {
    (void)cli_error("--prefix-len %" PRId64 " and %" PRId64 " nodes overflow", source->prefix_len, num_nodes);
    return false;
  }
  const int64_t kv_len = has_kv_len                 ? source->kv_len
                         : masked && has_prefix_len ? source->prefix_len + num_nodes
                                                    : capacity;
  if (kv_len > capacity) {
    (void)cli_error("%s %" PRId64 " exceeds the %" PRId64 " slots of '%s'",
                    has_kv_len ? "--kv-len" : "prefix and nodes together,", kv_len, capacity, input->k->name);
    return false;
  }
  if (masked && request->mask_stride < kv_len) {
    (void)cli_error("the mask has %" PRId64 " columns, fewer than the %" PRId64 " slots of the cache",
                    request->mask_stride, kv_len);
    return false;
  }
  if (!masked && !has_prefix_len && num_nodes > kv_len) {
    (void)cli_error("'%s' has %" PRId64 " nodes, more than the %" PRId64 " slots of the cache", input->q->name,
                    num_nodes, kv_len);
    return false;
  }
  if (!masked && has_prefix_len && source->prefix_len + num_nodes > kv_len) {
    (void)cli_error("--prefix-len %" PRId64 " and %" PRId64 " nodes exceed the %" PRId64 " slots of the cache",
                    source->prefix_len, num_nodes, kv_len);
    return false;
  }
  request->num_nodes = num_nodes;
  request->kv_seq_len = kv_len;
  request->prefix_len = has_prefix_len ? source->prefix_len : masked ? TREEATTN_AUTO : kv_len - num_nodes;
  return true;
}

int attend_input_open(const attend_source *source, attend_input *input) {
  const treeattn_request fresh = TREEATTN_REQUEST_INIT;
  *input = (attend_input){.request = fresh};
  const bool good = open_files(source, input) && get_cache(source, input) && get_visibility(source, input) &&
                    get_extras(source, input) && set_lengths(source, input);
  return good ? CLI_OK : CLI_FAILURE;
}

void attend_input_close(attend_input *input) {
  for (int f = 0; f <= ATTEND_NUM_ROLES; ++f) {
    io_close(input->files[f]);
    input->files[f] = NULL;
  }
}
