/* SPDX-License-Identifier: Apache-2.0 */
/* Reads kernels' declarations from their source text and hands dispatches to the executor. */
#include "bridge.h"

#include <cctype>
#include <cstring>
#include <map>
#include <string>

#include "../emulator/executor.h"

struct standin_source {
  std::string text;
  std::map<std::string, std::string> attribute_macros; /* #define NAME [[...]] */
  std::map<int, std::string> constants;                /* names by index */
};

namespace {

bool is_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

/* Comments become blanks, so that what they say is not taken for code. */
std::string without_comments(std::string text) {
  for (size_t at = 0; (at = text.find("/*", at)) != std::string::npos;) {
    const size_t end = text.find("*/", at + 2);
    text.replace(at, end == std::string::npos ? end : end + 2 - at, " ");
  }
  return text;
}

std::string last_word(const std::string &text) {
  size_t end = text.size();
  while (end > 0 && !is_word(text[end - 1])) {
    end--;
  }
  size_t begin = end;
  while (begin > 0 && is_word(text[begin - 1])) {
    begin--;
  }
  return text.substr(begin, end - begin);
}

int number_in(const std::string &attribute) {
  const size_t open = attribute.find('(');
  return open == std::string::npos ? -1 : std::atoi(attribute.c_str() + open + 1);
}

void read_macros(standin_source *source) {
  const std::string &text = source->text;
  for (size_t at = 0; (at = text.find("#define ", at)) != std::string::npos;) {
    at += 8;
    const size_t name_end = text.find_first_of(" \n", at), line_end = text.find('\n', at);
    const size_t open = text.find("[[", at), close = text.find("]]", at);
    if (open < line_end && close < line_end) {
      source->attribute_macros[text.substr(at, name_end - at)] = text.substr(open, close + 2 - open);
    }
  }
}

void read_constants(standin_source *source) {
  const std::string &text = source->text, mark = "[[function_constant(";
  for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos;) {
    const size_t statement = text.find_last_of(";}\n", at);
    source->constants[std::atoi(text.c_str() + at + mark.size())] = last_word(text.substr(statement, at - statement));
    at += mark.size();
  }
}

/* Where the kernel's arguments begin, after the parenthesis; npos if there is no such kernel. */
size_t find_kernel(const standin_source *source, const std::string &kernel) {
  const std::string mark = "kernel void " + kernel + "(";
  const size_t at = source->text.find(mark);
  return at == std::string::npos ? at : at + mark.size();
}

emulator::argument argument_of(const standin_source *source, std::string declaration) {
  for (const auto &macro : source->attribute_macros) {
    const size_t at = declaration.find(macro.first);
    if (at != std::string::npos) {
      declaration.replace(at, macro.first.size(), macro.second);
    }
  }
  const size_t open = declaration.find("[["), close = declaration.find("]]");
  if (open == std::string::npos || close == std::string::npos) {
    return {"nothing", -1};
  }
  const std::string attribute = declaration.substr(open + 2, close - open - 2);
  return {attribute, number_in(attribute)};
}

std::vector<emulator::argument> arguments_of(const standin_source *source, const std::string &kernel) {
  std::vector<emulator::argument> arguments;
  size_t begin = find_kernel(source, kernel);
  int depth = 1;
  for (size_t at = begin; depth > 0; at++) {
    const char c = source->text[at];
    depth += c == '(' || c == '[' ? 1 : 0;
    depth -= c == ')' || c == ']' ? 1 : 0;
    if (depth == 0 || (depth == 1 && c == ',')) {
      arguments.push_back(argument_of(source, source->text.substr(begin, at - begin)));
      begin = at + 1;
    }
  }
  return arguments;
}

} // namespace

standin_source *standin_source_new(const char *text) {
  standin_source *source = new standin_source;
  source->text = without_comments(text);
  read_macros(source);
  read_constants(source);
  return source;
}

void standin_source_free(standin_source *source) {
  delete source;
}

int standin_source_has(const standin_source *source, const char *kernel) {
  return find_kernel(source, kernel) != std::string::npos && emulator::has_kernel(kernel);
}

uint32_t standin_source_constants(const standin_source *source) {
  uint32_t bits = 0;
  for (const auto &constant : source->constants) {
    bits |= 1u << constant.first;
  }
  return bits;
}

const char *standin_run(const standin_dispatch *dispatch) {
  static std::string report;
  emulator::launch l;
  l.kernel = dispatch->kernel;
  l.arguments = arguments_of(dispatch->source, l.kernel);
  for (const auto &constant : dispatch->source->constants) {
    l.constants[constant.second] = dispatch->constants[constant.first];
  }
  for (int n = 0; n < STANDIN_BINDINGS; n++) {
    if (dispatch->data[n] != nullptr) {
      l.buffers[n] = {dispatch->data[n], dispatch->bytes[n], dispatch->offset[n]};
    }
    if (dispatch->threadgroup_bytes[n] != 0) {
      l.threadgroup_bytes[n] = dispatch->threadgroup_bytes[n];
    }
  }
  std::memcpy(l.grid, dispatch->grid, sizeof l.grid);
  l.lanes = dispatch->lanes;
  report = emulator::run(l);
  return report.c_str();
}

void standin_barrier(void) {
  emulator::device_barrier();
}

void standin_shuffle(uint64_t seed) {
  emulator::shuffle_order(seed);
}

uint64_t standin_bytes_read(const char *kernel, int buffer) {
  return emulator::bytes_read()[std::string(kernel) + " " + std::to_string(buffer)];
}

const char *standin_barrier_place(int n) {
  static std::string place;
  const std::vector<std::string> all = emulator::barriers_passed();
  if (n < 0 || size_t(n) >= all.size()) {
    return nullptr;
  }
  place = all[size_t(n)];
  return place.c_str();
}

void standin_drop_barrier(const char *place) {
  emulator::drop_barrier(place);
}
