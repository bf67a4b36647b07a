/** Superseded files of the log are emptied; a history is judged by what stood in them. */
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { type LogFiles, logFiles } from '../../../src/os/log-files.ts';

/** Where the copy of an epoch's file is kept. */
export const keptPath = (path: string): string => join(dirname(dirname(path)), 'kept', basename(path));

/**
 * The real files; what is emptied is copied before, as a whole, and once: a write of a former owner that lands in a
 * file which was emptied is emptied as well, and must not take the place of what stood there.
 */
export const keepingFiles: LogFiles = {
  ...logFiles,
  open: async (path, purpose) => {
    const file = await logFiles.open(path, purpose);
    return {
      ...file,
      empty: async () => {
        const bytes = readFileSync(path);
        const kept = keptPath(path);
        if (bytes.length > 0 && !existsSync(kept)) {
          mkdirSync(dirname(kept), { recursive: true });
          writeFileSync(`${kept}.${process.pid}`, bytes);
          renameSync(`${kept}.${process.pid}`, kept);
        }
        await file.empty();
      },
    };
  },
};
