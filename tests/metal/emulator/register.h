/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a compiled kernel known to the executor by its name; its C++ type says what each argument is. */
#ifndef EMULATOR_REGISTER_H
#define EMULATOR_REGISTER_H

#include <type_traits>
#include <utility>

#include "executor.h"

namespace emulator {

template <class T> parameter parameter_of() {
  using plain = std::remove_reference_t<T>;
  if constexpr (std::is_pointer_v<plain>) {
    return {true, !std::is_const_v<std::remove_pointer_t<plain>>, sizeof(plain)};
  } else {
    /* A reference is to the constant address space, which the language does not let a kernel write. */
    return {std::is_reference_v<T>, false, sizeof(plain)};
  }
}

/* Handing over arguments is no access of the kernel's: it goes uninstrumented. */
template <class T>
__attribute__((no_sanitize_thread)) inline __attribute__((always_inline)) T value_of(const void *address) {
  if constexpr (std::is_reference_v<T>) {
    return **static_cast<std::remove_reference_t<T> *const *>(address);
  } else {
    return *static_cast<const T *>(address);
  }
}

template <class... A> struct signature {
  template <size_t... I>
  __attribute__((no_sanitize_thread)) static void unpack(void (*function)(), const void *const *values,
                                                         std::index_sequence<I...>) {
    reinterpret_cast<void (*)(A...)>(function)(value_of<A>(values[I])...);
  }
  __attribute__((no_sanitize_thread)) static void call(void (*function)(), const void *const *values) {
    unpack(function, values, std::index_sequence_for<A...>());
  }
};

template <class... A> bool add_function(const char *name, void (*function)(A...)) {
  add_kernel(name, {reinterpret_cast<void (*)()>(function), signature<A...>::call, {parameter_of<A>()...}});
  return true;
}

} // namespace emulator

#define REGISTER_KERNEL(name) static const bool name##_is_known = emulator::add_function(#name, name)
#define REGISTER_CONSTANT(name) static const bool name##_is_known = (emulator::add_constant(#name, &name), true)

#endif
