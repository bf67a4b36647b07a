import { afterAll, beforeAll, expect, test } from 'vitest';
import { CliHost } from './host.ts';
import { check } from './transcript.ts';

let host: CliHost;
beforeAll(async () => {
  host = await CliHost.start();
});
afterAll(() => host.end());

const DATA = '/srv/data/xce-sandbox';
const RAN = '/srv/ran';

/** A plugin as oclif looks for it below the data directory of a user: its hook would run before any command. */
const plant = (): void => {
  const plugins = [{ name: 'planted', type: 'user' }];
  const dependencies = { planted: '1.0.0' };
  host.write(
    `${DATA}/package.json`,
    JSON.stringify({ name: 'xce-sandbox', version: '1.0.0', oclif: { schema: 1, plugins }, dependencies }),
  );
  host.write(
    `${DATA}/node_modules/planted/package.json`,
    JSON.stringify({ name: 'planted', version: '1.0.0', oclif: { hooks: { init: './hook.js' } } }),
  );
  host.write(
    `${DATA}/node_modules/planted/hook.js`,
    `module.exports = async () => require('node:fs').writeFileSync('${RAN}', '');`,
  );
};

// A prolog runs as root with variables that a user has set.
test.each([
  { XDG_DATA_HOME: '/srv/data' },
  { XCE_SANDBOX_DATA_DIR: DATA },
  { HOME: '/srv/home' },
  { NODE_ENV: 'development', XDG_DATA_HOME: '/srv/data' },
])('no code of a user runs because of %o', async (env) => {
  plant();
  await host.shell('mkdir -p /srv/home/.local && ln -sfn /srv/data /srv/home/.local/share');
  await check(host, { args: '--version', env, stdout: /^xce-sandbox\// });
  await check(host, { args: 'frob', env, status: 64, stderr: /^xce-sandbox: there is no command 'frob'/ });
  await check(host, { args: 'config show', env, stdout: /^SECTION/ });
  expect(host.exists(RAN)).toBe(false);
});

test('what a user has in his own directories changes no output', async () => {
  host.write('/srv/config/xce-sandbox/theme.json', JSON.stringify({ bin: 'red', command: 'red' }));
  const { stdout } = await check(host, { args: 'help', stdout: /^COMMANDS$/m });
  for (const env of [
    { XDG_CONFIG_HOME: '/srv/config' },
    { XCE_SANDBOX_CONFIG_DIR: '/srv/config/xce-sandbox' },
  ]) {
    await check(host, { args: 'help', env, stdout });
  }
});

test('nothing is written to the home directory', async () => {
  await host.shell('rm -rf /srv/home && mkdir /srv/home');
  for (const args of ['--version', 'help', 'config show', 'frob', 'lease list']) {
    await host.xce(args.split(' '), { env: { HOME: '/srv/home', XDG_CACHE_HOME: '/srv/home/cache' } });
  }
  expect(host.snapshot('/srv/home')).toEqual({});
});
