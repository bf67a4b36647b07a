/**
 * The first program of `npm run demo`, `npm test` and `npm run bench`: plain JavaScript on Node alone, since a bare
 * clone has nothing else. Makes node_modules what package-lock.json says, then hands over to the TypeScript program.
 * Debian packages and the node image are made where nodes are booted (support/cluster), only when they are needed.
 */
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const NODE_MIN = [20, 19];
const root = fileURLToPath(new URL('../..', import.meta.url));

/** Which need root to do all of their work. */
const PROGRAMS = {
  demo: { entry: 'test/demo/main.ts', root: 'boots nodes' },
  test: { entry: 'test/support/test-main.ts', root: undefined },
  bench: { entry: 'test/support/bench-main.ts', root: undefined },
};

/** @param {string} line @returns {never} */
const refuse = (line) => {
  process.stderr.write(`xce-sandbox: ${line}\n`);
  process.exit(1);
};

/** @param {string} path @returns {Record<string, { version?: string, integrity?: string, optional?: boolean }> | undefined} */
const readPackages = (path) => {
  try {
    return JSON.parse(readFileSync(join(root, path), 'utf8')).packages;
  } catch {
    return undefined; // not installed, or by an npm that was interrupted
  }
};

/** npm writes node_modules/.package-lock.json as its last act, so it tells what is really there. */
const isInstalled = () => {
  const wanted = readPackages('package-lock.json');
  const found = readPackages('node_modules/.package-lock.json');
  if (wanted === undefined) return refuse('package-lock.json cannot be read');
  if (found === undefined) return false;
  const same = Object.keys(found).every((path) => {
    const [a, b] = [wanted[path], found[path]];
    return a?.version === b?.version && a?.integrity === b?.integrity;
  });
  return (
    same && Object.entries(wanted).every(([path, entry]) => path === '' || entry.optional || path in found)
  );
};

/** Runs a program in our place: it has our terminal, gets our signals, and its end is ours. */
const run = (/** @type {string} */ file, /** @type {string[]} */ argv) =>
  new Promise((/** @type {(status: number) => void} */ resolve, reject) => {
    const child = spawn(file, argv, { cwd: root, stdio: 'inherit' });
    const forward = (/** @type {NodeJS.Signals} */ signal) => child.kill(signal);
    const ignore = () => undefined; // the terminal tells the child as well
    process.on('SIGINT', ignore).on('SIGTERM', forward).on('SIGHUP', forward);
    child.once('error', reject);
    child.once('close', (code, signal) => {
      process.off('SIGINT', ignore).off('SIGTERM', forward).off('SIGHUP', forward);
      const numbers = { SIGHUP: 1, SIGINT: 2, SIGTERM: 15 };
      resolve(code ?? 128 + (numbers[/** @type {'SIGHUP'} */ (signal)] ?? 9));
    });
  });

const [, , name = '', ...rest] = process.argv;
if (!Object.hasOwn(PROGRAMS, name))
  refuse(`usage: setup.mjs ${Object.keys(PROGRAMS).join('|')} [ARGUMENT...]`);
const program = PROGRAMS[/** @type {keyof typeof PROGRAMS} */ (name)];
if (process.platform !== 'linux')
  refuse(`this is ${process.platform}; the suite and its tests run on Linux alone`);
const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
if (major < NODE_MIN[0] || (major === NODE_MIN[0] && minor < NODE_MIN[1])) {
  refuse(`this is Node ${process.versions.node}; ${NODE_MIN.join('.')} or later is needed`);
}
const isHelp = rest.includes('--help') || rest.includes('-h');
if (program.root !== undefined && process.getuid?.() !== 0 && !isHelp) {
  refuse(`${name} ${program.root} and needs root: sudo npm run ${name}`);
}
if (!isInstalled()) {
  process.stderr.write('node_modules is not what package-lock.json says: npm ci\n');
  const status = await run('npm', ['ci', '--no-audit', '--no-fund']);
  if (status !== 0) refuse(`npm ci ended with status ${status}`);
}
process.exitCode = await run(process.execPath, ['--import', 'tsx', join(root, program.entry), ...rest]);
