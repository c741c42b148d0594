/* SPDX-License-Identifier: Apache-2.0 */
/* The few words of Foundation that the Metal back end uses, for systems without it. Objects are counted. */
#ifndef STANDIN_FOUNDATION_H
#define STANDIN_FOUNDATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef unsigned long NSUInteger;
typedef signed char STANDIN_BOOL;
#define BOOL STANDIN_BOOL
#define YES ((BOOL)1)
#define NO ((BOOL)0)
#define nil ((id)0)

typedef struct objc_class *Class;

@protocol NSObject
- (id)retain;
- (void)release;
- (id)autorelease;
@end

__attribute__((objc_root_class))
@interface NSObject<NSObject> {
  Class isa;
  NSUInteger references;
}
+ (id)alloc;
- (id)init;
- (void)dealloc;
@end

/* What @autoreleasepool is made of. */
@interface NSAutoreleasePool : NSObject {
  int first;
}
- (void)drain;
@end

@interface NSString : NSObject {
  char *text;
}
+ (NSString *)stringWithUTF8String:(const char *)utf8;
- (const char *)UTF8String;
@end

@interface NSError : NSObject {
  NSString *description;
}
- (NSString *)localizedDescription;
@end

#endif
