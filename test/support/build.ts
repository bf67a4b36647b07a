/**
 * Bundles the programs into dist/ and writes oclif.manifest.json. One file per command plus shared chunks, so
 * that a command loads only itself; the worker and the agent are bundles of their own and never meet oclif.
 */
import { execFileSync } from 'node:child_process';
import { chmodSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { build } from 'esbuild';
import { EVERY_BUILD, HOT_BUILD, root } from './bundles.ts';

const commands = readdirSync(join(root, 'src/commands'), { recursive: true, encoding: 'utf8' })
  .filter((file) => file.endsWith('.ts'))
  .map((file) => ({ in: join(root, 'src/commands', file), out: `commands/${file.slice(0, -'.ts'.length)}` }));

rmSync(join(root, 'dist'), { recursive: true, force: true });
const programs = await build({
  ...EVERY_BUILD,
  entryPoints: [
    { in: 'src/cli/main.ts', out: 'cli' },
    { in: 'src/worker/main.ts', out: 'worker' },
    { in: 'src/mpi/agent-main.ts', out: 'agent' },
    { in: 'src/operations/probe-process-main.ts', out: 'probe-process' },
    ...commands,
  ],
  splitting: true,
  chunkNames: 'chunks/[name]-[hash]',
  // CommonJS packages inside an ES module bundle still call require for node's own modules.
  banner: {
    js: [
      "import { createRequire as xceCreateRequire } from 'node:module';",
      "import { fileURLToPath as xceFileURLToPath } from 'node:url';",
      "import { dirname as xceDirname } from 'node:path';",
      'const require = xceCreateRequire(import.meta.url);',
      'const __filename = xceFileURLToPath(import.meta.url);',
      'const __dirname = xceDirname(__filename);',
    ].join(' '),
  },
});
const hot = await build(HOT_BUILD);
if (programs.warnings.length + hot.warnings.length > 0) process.exitCode = 1;

for (const program of ['xce-sandbox', 'xce-sandbox-worker', 'xce-sandbox-agent']) {
  chmodSync(join(root, 'bin', program), 0o755);
}
// oclif writes into its home; this one goes with the build.
const home = mkdtempSync(join(tmpdir(), 'xce-sandbox-build-'));
try {
  execFileSync(process.execPath, [join(root, 'node_modules/oclif/bin/run.js'), 'manifest', root], {
    cwd: root,
    stdio: ['ignore', 'ignore', 'inherit'],
    env: { PATH: process.env['PATH'] ?? '', HOME: home, NO_COLOR: '1' },
  });
} finally {
  rmSync(home, { recursive: true });
}
