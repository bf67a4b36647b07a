/** Starts hot.ts with compiled code. Only root has any: nobody else gets further than to be refused. */
import { join } from 'node:path';
import { runCached } from '../os/code-cache.ts';
import type { runHot } from './hot.ts';

/** Gone after a boot, and only root makes names there. */
const CODE_PATH = '/run/xce-sandbox/hot.code';

/** As runHot; `load` is the `require` of a program of the package. */
export const startHot = async (argv: readonly string[], load: NodeJS.Require): ReturnType<typeof runHot> => {
  const path = join(import.meta.dirname, 'hot.cjs');
  if (process.geteuid?.() !== 0) return await (load(path) as { runHot: typeof runHot }).runHot(argv);
  const { exports, save } = runCached(path, CODE_PATH, load);
  const status = await (exports as { runHot: typeof runHot }).runHot(argv);
  // What a refusal runs is less than what the others need.
  if (status === 0) save();
  return status;
};
