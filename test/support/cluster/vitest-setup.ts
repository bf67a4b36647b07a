/** Packs the product once for all test files of a run; Cluster.start takes the tarball from the environment. */
import { packProduct, TARBALL_VARIABLE } from './product.ts';
import { Scope } from './scope.ts';

export const setup = async (): Promise<(() => Promise<void>) | undefined> => {
  if (process.env[TARBALL_VARIABLE] !== undefined) return undefined; // somebody wants to test a given one
  const scope = await Scope.open();
  try {
    process.env[TARBALL_VARIABLE] = await packProduct(scope.directory);
  } catch (error) {
    await scope.close();
    throw error;
  }
  return async () => {
    await scope.close();
  };
};
