/* SPDX-License-Identifier: Apache-2.0 */
/* Counted objects, pools, strings and errors, on the bare Objective-C runtime. */
#import "standin.h"

#include <stdlib.h>
#include <string.h>

extern id class_createInstance(Class type, size_t extra_bytes);
extern id object_dispose(id object);

static long objects;

long standin_objects(void) {
  return __atomic_load_n(&objects, __ATOMIC_RELAXED);
}

@implementation NSObject
+ (id)alloc {
  NSObject *object = class_createInstance((Class)self, 0);
  object->references = 1;
  (void)__atomic_add_fetch(&objects, 1, __ATOMIC_RELAXED);
  return object;
}
- (id)init {
  return self;
}
- (id)retain {
  (void)__atomic_add_fetch(&references, 1, __ATOMIC_RELAXED);
  return self;
}
- (void)release {
  if (__atomic_sub_fetch(&references, 1, __ATOMIC_ACQ_REL) == 0) {
    [self dealloc];
  }
}
- (id)autorelease {
  standin_pool_add(self);
  return self;
}
- (void)dealloc {
  (void)__atomic_sub_fetch(&objects, 1, __ATOMIC_RELAXED);
  (void)object_dispose(self);
}
@end

/* What is autoreleased since a pool was made is released when it goes. */
static _Thread_local id pool_items[256];
static _Thread_local int pool_count, pool_depth;

void standin_pool_add(id object) {
  if (pool_depth == 0 || pool_count == (int)(sizeof pool_items / sizeof *pool_items)) {
    abort(); /* without a pool it would leak: a fault of the code under test */
  }
  pool_items[pool_count++] = object;
}

@implementation NSAutoreleasePool
- (id)init {
  first = pool_count;
  ++pool_depth;
  return self;
}
- (void)drain {
  while (pool_count > first) {
    [pool_items[--pool_count] release];
  }
  --pool_depth;
  [self release];
}
@end

@implementation NSString
+ (NSString *)stringWithUTF8String:(const char *)utf8 {
  NSString *string = [[NSString alloc] init];
  string->text = strdup(utf8);
  return [string autorelease];
}
- (const char *)UTF8String {
  return text;
}
- (void)dealloc {
  free(text);
  [super dealloc];
}
@end

@implementation NSError
- (id)initWithText:(const char *)text {
  description = [[NSString stringWithUTF8String:text] retain];
  return self;
}
- (NSString *)localizedDescription {
  return description;
}
- (void)dealloc {
  [description release];
  [super dealloc];
}
@end
