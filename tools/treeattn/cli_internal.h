/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of cli.h share among themselves. */
#ifndef TREEATTN_TOOL_CLI_INTERNAL_H
#define TREEATTN_TOOL_CLI_INTERNAL_H

/* Takes a visible progress bar off the terminal's line, so that a message starts on a clean one. */
void cli_progress_hide(void);

#endif
