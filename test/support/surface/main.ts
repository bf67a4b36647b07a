/** Writes what is made from the commands and the table of errors: `tsx test/support/surface/main.ts`. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { repositoryDirectory } from '../cluster/product.ts';
import { renderAll } from './render.ts';

for (const [path, text] of await renderAll()) writeFileSync(join(repositoryDirectory, path), text);
