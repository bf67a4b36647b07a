import { execFileSync } from 'node:child_process';
import { accessSync, constants, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { repositoryDirectory } from '../support/cluster/product.ts';
import { readCommands } from '../support/surface/commands.ts';
import { renderAll } from '../support/surface/render.ts';

const fileOf = (shell: string): string => join(repositoryDirectory, `completions/xce-sandbox.${shell}`);

const findProgram = (name: string): string | undefined =>
  ['/usr/bin', '/bin', '/usr/local/bin']
    .map((directory) => join(directory, name))
    .find((path) => {
      try {
        accessSync(path, constants.X_OK);
        return true;
      } catch {
        return false; // the next directory may have it
      }
    });

/** fish writes into the home directory even when it is told to read no configuration. */
const home = mkdtempSync(join(tmpdir(), 'xce-sandbox-completions-'));
afterAll(() => rmSync(home, { recursive: true }));

const run = (program: string, args: readonly string[], input = ''): string =>
  execFileSync(program, args, {
    input,
    encoding: 'utf8',
    cwd: '/',
    env: { PATH: '/usr/local/bin:/usr/bin:/bin', HOME: home, TERM: 'dumb' },
    timeout: 90_000,
    killSignal: 'SIGKILL',
  });

/** Drives the completion function as bash does: words broken at = as well, the last one being typed. */
const BASH = `source '${fileOf('bash')}'
while IFS= read -r line; do
  echo "> $line"
  read -ra COMP_WORDS <<<"\${line//=/ = }"
  [[ $line == *' ' ]] && COMP_WORDS+=('')
  COMP_CWORD=$((\${#COMP_WORDS[@]} - 1))
  COMPREPLY=()
  _xce_sandbox
  if (( \${#COMPREPLY[@]} )); then printf '%s\\n' "\${COMPREPLY[@]}"; fi
done`;

const FISH = `source '${fileOf('fish')}'
while read -l line
  echo "> $line"
  complete -C "$line"
end`;

const driver = join(repositoryDirectory, 'test/support/surface/zsh-driver.zsh');

/** Prints `> LINE` and what the shell offers for it, for each line of the input. */
const SHELLS: Readonly<Record<string, readonly string[]>> = {
  bash: ['--norc', '-c', BASH],
  fish: ['--no-config', '-c', FISH],
  zsh: ['-f', driver, fileOf('zsh')],
};

/** What a shell offers for each line: words, without what they are. */
const complete = (shell: string, lines: readonly string[]): ReadonlyMap<string, readonly string[]> => {
  const program = findProgram(shell);
  if (program === undefined) throw new Error(`${shell} is not installed`);
  const output = run(program, SHELLS[shell] ?? [], lines.map((line) => `${line}\n`).join(''));
  const offered = new Map<string, string[]>();
  let words: string[] = [];
  for (const line of output.split('\n')) {
    if (line.startsWith('> ')) {
      words = [];
      offered.set(line.slice(2), words);
    } else if (line !== '') {
      words.push(line.split('\t')[0] ?? '');
    }
  }
  return offered;
};

const commands = await readCommands();
const LEASE_WORDS = commands
  .filter(({ name }) => name.startsWith('lease '))
  .map(({ name }) => name.slice('lease '.length));
const longFlagsOf = (command: string): readonly string[] =>
  (commands.find(({ name }) => name === command)?.flags ?? []).map(({ name }) => `--${name}`);

const rendered = [...(await renderAll())].filter(([path]) => path.startsWith('completions/'));

test.each(rendered)('%s is what is made from the commands', (path, text) => {
  const committed = readFileSync(join(repositoryDirectory, path), 'utf8');
  expect(committed, 'run: npx tsx test/support/surface/main.ts').toBe(text);
});

describe.each(Object.keys(SHELLS))('%s', (shell) => {
  test.skipIf(findProgram(shell) === undefined)(
    'offers words, flags and values',
    { timeout: 100_000 },
    () => {
      const offered = complete(shell, [
        'xce-sandbox ',
        'xce-sandbox lease ',
        'xce-sandbox help lease ',
        'xce-sandbox lease allocate --',
        'xce-sandbox lease allocate --job 7 --no',
        'xce-sandbox lease list --status ',
        'xce-sandbox config show --config /etc/pass',
        'xce-sandbox launch --stdin ',
        'xce-sandbox launch --env A=1 --en',
        'xce-sandbox launch --mpi --ra',
        'xce-sandbox launch --mpi=hy',
        'xce-sandbox launch --job 7 -- getco',
        'xce-sandbox launch --job 7 -- cat /etc/pass',
      ]);
      const wordsOf = (line: string): readonly string[] => {
        const words = offered.get(`xce-sandbox ${line}`) ?? [];
        return [...new Set(words.map((word) => word.replace(/=$/, '')))].sort();
      };
      const sorted = (words: readonly string[]): readonly string[] => [...words].sort();
      expect(wordsOf('launch --mpi --ra')).toEqual(['--ranks']);
      expect(wordsOf('launch --mpi=hy').join()).toMatch(/^(?:--mpi=)?hydra$/);
      const top = new Set(commands.map(({ name }) => name.split(' ')[0] ?? ''));
      expect(wordsOf('')).toEqual(sorted([...top]));
      expect(wordsOf('lease ')).toEqual(sorted(LEASE_WORDS));
      expect(wordsOf('help lease ')).toEqual(sorted(LEASE_WORDS));
      expect(wordsOf('lease allocate --')).toEqual(sorted(longFlagsOf('lease allocate')));
      expect(wordsOf('lease allocate --job 7 --no')).toEqual(['--nodes']);
      expect(wordsOf('lease list --status ')).toEqual(['active', 'draining', 'normalising', 'quarantined']);
      expect(wordsOf('config show --config /etc/pass').join(' ')).toMatch(/\bpasswd\b/);
      expect(wordsOf('launch --stdin ')).toEqual(['all', 'none']);
      expect(wordsOf('launch --env A=1 --en')).toEqual(['--env', '--env-file']);
      expect(wordsOf('launch --job 7 -- getco')).toContain('getconf');
      expect(wordsOf('launch --job 7 -- cat /etc/pass').join(' ')).toMatch(/\bpasswd\b/);
    },
  );
});

test.skipIf(findProgram('bash') === undefined)('bash completes a value behind = and of a short flag', () => {
  const offered = complete('bash', [
    'xce-sandbox pki issue --role=w',
    'xce-sandbox pki issue --out=/etc/ssl/cer',
    'xce-sandbox launch -j ',
    'xce-sandbox launch -e A=1 ',
    'xce-sandbox nonsense ',
  ]);
  expect(offered.get('xce-sandbox pki issue --role=w')).toEqual(['worker']);
  expect(offered.get('xce-sandbox pki issue --out=/etc/ssl/cer')).toEqual(['/etc/ssl/certs']);
  expect(offered.get('xce-sandbox launch -j ')).toEqual([]);
  expect(offered.get('xce-sandbox launch -e A=1 ')).toContain('--env');
  expect(offered.get('xce-sandbox nonsense ')).toEqual([]);
});

test.skipIf(findProgram('fish') === undefined)('fish says what a word is', () => {
  const program = findProgram('fish') ?? '';
  const output = run(program, SHELLS['fish'] ?? [], 'xce-sandbox lease rel\n');
  expect(output).toContain('release\tEnd a job and free its uid, by proof\n');
});
