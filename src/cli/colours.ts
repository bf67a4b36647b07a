import chalk, { chalkStderr } from 'chalk';
import type { Colours } from './print.ts';

/** Colour only on a terminal that wants it, for stdout and stderr each by itself. */
export const terminalColours = (): Colours => {
  // chalk looks at FORCE_COLOR and at the terminal, and not at NO_COLOR (no-color.org).
  if ((process.env['NO_COLOR'] ?? '') !== '' && process.env['FORCE_COLOR'] === undefined) {
    chalk.level = 0;
    chalkStderr.level = 0;
  }
  return { heading: (text) => chalk.bold(text), alarm: (text) => chalkStderr.red(text) };
};
