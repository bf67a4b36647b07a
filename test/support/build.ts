/** Bundles the programs into dist/ and writes oclif.manifest.json. */
import { execFileSync } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { bundleFile } from './bundle.ts';
import { buildPrograms, root } from './bundles.ts';

const dist = join(root, 'dist');
rmSync(dist, { recursive: true, force: true });
mkdirSync(dist);
const { files, warnings } = await buildPrograms();
for (const { path, text } of files) writeFileSync(path, text);
if (warnings > 0) process.exitCode = 1;

for (const program of ['xce-sandbox', 'xce-sandbox-worker', 'xce-sandbox-agent']) {
  chmodSync(join(root, 'bin', program), 0o755);
}
// The commands as oclif reads them, and only for the manifest, which is all that it needs to know of them later.
const commands = join(dist, 'commands.mjs');
await bundleFile(new URL('./manifest-commands.ts', import.meta.url), commands);
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
  rmSync(commands);
}
